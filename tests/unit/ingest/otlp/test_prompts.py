"""What people and models said does not pass; what is needed to watch them does."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from loms.ingest.otlp.bodies import parsed
from loms.ingest.otlp.prompts import may_carry, names_prompt, redact

SPANS = Path(__file__).parents[3] / "data/spans"
SECRET = "My password is hunter2"
INSTEAD = f"(not kept: 22 characters, sha256 {hashlib.sha256(SECRET.encode()).hexdigest()[:16]})"


@pytest.mark.parametrize(
    "key",
    [
        "gen_ai.input.messages",
        "gen_ai.output.messages",
        "gen_ai.system_instructions",
        "gen_ai.tool.definitions",
        "gen_ai.tool.call.arguments",
        "gen_ai.tool.call.result",
        "gen_ai.prompt",
        "gen_ai.completion",
        "gen_ai.prompt.0.content",
        "gen_ai.completion.0.tool_calls.1.arguments",
        "gen_ai.retrieval.query.text",
        "gen_ai.event.content",
        "llm.input_messages.0.message.content",
        "llm.output_messages.0.message.tool_calls.0.tool_call.function.arguments",
        "llm.prompts.0",
        "input.value",
        "output.value",
        "retrieval.documents.0.document.content",
        "embedding.embeddings.0.embedding.text",
        "traceloop.entity.input",
        "ai.prompt.messages",
        "ai.response.text",
        "ai.toolCall.args",
        "mlflow.spanInputs",
        "langfuse.observation.input",
        "pydantic_ai.all_messages",
        "all_messages_events",
        "final_result",
        "tool_arguments",
        "tool_response",
        "tool.parameters",
        "message.content",
        "llm.function_call",
        "ai.value",
        "ai.result.text",
        "gen_ai.response.text",
        "gen_ai.request.messages",
        "gen_ai.choice",
        "gen_ai.user.message",
        "gen_ai.evaluation.explanation",
        "gen_ai.input.messages.0.content",
        "gen_ai.output.messages.1.parts.0.content",
        "gen_ai.system_instructions.0.content",
        "gen_ai.tool.call.arguments.query",
        "gen_ai.tool.call.arguments.name",
        "gen_ai.retrieval.documents.0.content",
        "reranker.query",
        "reranker.input_documents.0.document.content",
        "reranker.output_documents.3.document.content",
        "retrieval.documents",
    ],
)
def test_texts_are_known_by_their_names(key: str) -> None:
    assert names_prompt(key)
    assert may_carry(key.encode())


@pytest.mark.parametrize(
    "key",
    [
        "gen_ai.request.model",
        "gen_ai.usage.prompt_tokens",
        "gen_ai.usage.completion_tokens",
        "gen_ai.response.finish_reasons",
        "gen_ai.prompt.0.role",
        "gen_ai.completion.0.finish_reason",
        "gen_ai.tool.name",
        "gen_ai.tool.call.id",
        "gen_ai.latency.time_in_model_prefill",
        "llm.token_count.prompt",
        "llm.output_messages.0.message.role",
        "input.mime_type",
        "traceloop.span.kind",
        "ai.usage.promptTokens",
        "http.request.body.size",
        "gen_ai.input.messages.0.role",
        "reranker.model_name",
        "reranker.top_k",
        "reranker.output_documents.0.document.score",
        "message",
    ],
)
def test_other_attributes_stay(key: str) -> None:
    assert not names_prompt(key)


@pytest.mark.parametrize(
    "event",
    [
        *(f"gen_ai.{who}.message" for who in ("system", "user", "assistant", "tool")),
        "gen_ai.choice",
        "gen_ai.content.prompt",
        "gen_ai.content.completion",
        "gen_ai.client.inference.operation.details",
        "gen_ai.evaluation.result",
    ],
)
def test_events_that_carry_texts_are_not_passed_over(event: str) -> None:
    assert may_carry(event.encode())


def test_what_engines_send_need_not_be_looked_at() -> None:
    assert not may_carry(
        b" ".join(b"gen_ai." + name for name in (b"request.model", b"usage.prompt_tokens", b"latency.e2e"))
    )
    assert not may_carry(b"gen_ai.response.model gen_ai.system gen_ai.provider.name gen_ai.operation.name")


def test_spans_their_events_and_links() -> None:
    secret = {"key": "gen_ai.input.messages", "value": {"string_value": SECRET}}
    plain = {"key": "gen_ai.request.model", "value": {"string_value": "m"}}
    content = {"key": "content", "value": {"string_value": SECRET}}
    role = {"key": "role", "value": {"string_value": "user"}}
    request = ExportTraceServiceRequest(
        resource_spans=[{"scope_spans": [{"spans": [{
            "attributes": [secret, plain],
            "events": [
                {"name": "gen_ai.user.message", "attributes": [content, role]},
                {"name": "note", "attributes": [content]},
            ],
            "links": [{"attributes": [secret]}],
        }]}]}]
    )  # fmt: skip
    assert redact(request) == 3
    span = request.resource_spans[0].scope_spans[0].spans[0]
    assert [one.value.string_value for one in span.attributes] == [INSTEAD, "m"]
    assert [one.value.string_value for one in span.events[0].attributes] == [INSTEAD, "user"]
    assert span.events[1].attributes[0].value.string_value == SECRET
    assert span.links[0].attributes[0].value.string_value == INSTEAD
    assert redact(request) == 3
    assert span.attributes[0].value.string_value == INSTEAD, "said once, not of itself"


@pytest.mark.parametrize(
    "named",
    [
        {"event_name": "gen_ai.choice"},
        {"attributes": [{"key": "event.name", "value": {"string_value": "gen_ai.choice"}}]},
    ],
)
def test_bodies_of_message_events(named: dict[str, object]) -> None:
    body = {"kvlist_value": {"values": [{"key": "content", "value": {"string_value": SECRET}}]}}
    request = ExportLogsServiceRequest(resource_logs=[{"scope_logs": [{"log_records": [{"body": body, **named}]}]}])
    assert redact(request) == 1
    text = request.resource_logs[0].scope_logs[0].log_records[0].body.string_value
    as_json = f'{{"content":"{SECRET}"}}'
    assert text.startswith(f"(not kept: {len(as_json)} characters")
    assert SECRET not in str(request)


def test_bodies_of_other_records_stay_but_for_prompts_in_them() -> None:
    fields = [
        {"key": "gen_ai.prompt", "value": {"string_value": SECRET}},
        {"key": "level", "value": {"string_value": "low"}},
    ]
    records = [{"body": {"string_value": "started"}}, {"body": {"kvlist_value": {"values": fields}}}]
    request = ExportLogsServiceRequest(resource_logs=[{"scope_logs": [{"log_records": records}]}])
    assert redact(request) == 1
    first, second = request.resource_logs[0].scope_logs[0].log_records
    assert first.body.string_value == "started"
    assert [one.value.string_value for one in second.body.kvlist_value.values] == [INSTEAD, "low"]


@pytest.mark.parametrize("engine", ["vllm-0.32.0", "sglang-0.5.23", "triton-2.51.0"])
def test_what_real_engines_send_holds_no_prompt_and_is_left_as_it_is(engine: str) -> None:
    for line in (SPANS / f"{engine}.jsonl").read_bytes().splitlines():
        request = parsed("traces", line, as_json=True)
        before = request.SerializeToString()
        assert redact(request) == 0
        assert request.SerializeToString() == before


def nested(*names: str) -> dict[str, object]:
    """Maps within maps; ``[]`` stands for an array. The innermost value is the secret."""
    value: dict[str, object] = {"string_value": SECRET}
    for name in reversed(names):
        if name == "[]":
            value = {"array_value": {"values": [value]}}
        else:
            value = {"kvlist_value": {"values": [{"key": name, "value": value}]}}
    return value


@pytest.mark.parametrize(
    "names",
    [
        ("gen_ai.input.messages",),
        ("a", "b", "gen_ai.input.messages", "[]", "content"),
        ("a", "[]", "[]", "gen_ai.prompt"),
        ("data", "input.value"),
    ],
)
def test_prompts_in_maps_and_arrays_however_deep(names: tuple[str, ...]) -> None:
    spans = ExportTraceServiceRequest(
        resource_spans=[{"scope_spans": [{"spans": [{"attributes": [{"key": "x", "value": nested(*names)}]}]}]}]
    )
    record = {"body": nested(*names)}
    logs = ExportLogsServiceRequest(resource_logs=[{"scope_logs": [{"log_records": [record]}]}])
    for request in (spans, logs):
        assert may_carry(request.SerializeToString())
        assert redact(request) == 1
        assert SECRET not in str(request)


@pytest.mark.parametrize(
    ("key", "names"),
    [("gen_ai", ("input", "messages", "[]", "content")), ("input", ("value",)), ("llm", ("prompts", "[]", "text"))],
)
def test_a_name_that_is_split_over_maps_is_known(key: str, names: tuple[str, ...]) -> None:
    attribute = {"key": key, "value": nested(*names)}
    spans = ExportTraceServiceRequest(resource_spans=[{"scope_spans": [{"spans": [{"attributes": [attribute]}]}]}])
    assert may_carry(spans.SerializeToString())
    assert redact(spans) == 1
    assert SECRET not in str(spans)
