from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from loms.lab.openai_api import ApiError, ChatAsk, CompletionAsk, Writer, invalid, plan, usage


def chat(**fields: object) -> ChatAsk:
    return ChatAsk.model_validate({"messages": [{"role": "user", "content": "Hello there, engine!"}], **fields})


def test_the_answer_is_as_long_as_asked_for() -> None:
    made = plan(chat(max_tokens=10), 4096)
    assert (len(made.reply), len(made.pieces), made.finish_reason, made.max_tokens) == (10, 10, "length", 10)
    assert "".join(made.pieces).startswith("simulated:")


def test_without_a_limit_it_stops_by_itself_and_the_prompt_decides_where() -> None:
    made = plan(chat(), 4096)
    assert made.finish_reason == "stop"
    assert 64 <= len(made.reply) <= 512
    assert plan(chat(), 4096) == made
    assert plan(chat(seed=5), 4096) != made


def test_a_high_limit_is_reached_only_when_the_end_is_ignored() -> None:
    assert plan(chat(max_tokens=2000), 4096).finish_reason == "stop"
    made = plan(chat(max_tokens=2000, ignore_eos=True), 4096)
    assert (len(made.reply), made.finish_reason) == (2000, "length")


def test_max_completion_tokens_is_the_newer_name() -> None:
    assert plan(chat(max_completion_tokens=7, max_tokens=9), 4096).max_tokens == 7


def test_parts_and_token_ids_are_prompts_too() -> None:
    parts = ChatAsk.model_validate(
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "Hello there, "}, {"type": "text", "text": "engine!"}],
                }
            ]
        }
    )
    assert plan(parts, 4096).prompt == plan(chat(), 4096).prompt
    assert plan(CompletionAsk(prompt=[1, 2, 3]), 4096).prompt == (1, 2, 3)
    assert len(plan(CompletionAsk(prompt="x"), 4096).reply) == 16


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"n": 2}, "n"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages.0.content"),
    ],
)
def test_wrong_parameters_are_named(fields: dict[str, object], param: str) -> None:
    with pytest.raises(ValidationError) as caught:
        chat(**fields)
    error = invalid(caught.value)
    assert error.status == 400
    assert error.body["error"]["type"] == "BadRequestError"
    assert error.body["error"]["param"].startswith(param)


@pytest.mark.parametrize(("limit", "param"), [(3, "input_tokens"), (100, "max_tokens")])
def test_what_does_not_fit_is_refused(limit: int, param: str) -> None:
    with pytest.raises(ApiError, match="maximum context length") as caught:
        plan(chat(max_tokens=200), limit)
    assert (caught.value.status, caught.value.body["error"]["param"]) == (400, param)


@pytest.mark.parametrize("is_chat", [True, False])
def test_streamed_and_plain_answers_say_the_same(is_chat: bool) -> None:
    ask = chat(max_tokens=5) if is_chat else CompletionAsk(prompt="Hello there", max_tokens=5)
    writer = Writer(plan(ask, 4096), chat=is_chat, request_id="r-1", created=7, model="m")
    used = usage(9, 5, 0)
    text = (writer.opening() + writer.chunks(0, 2) + writer.chunks(2, 5) + writer.closing(used)).decode()
    lines = text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    assert {(event["id"], event["created"], event["model"]) for event in events} == {("r-1", 7, "m")}
    assert events[-1]["choices"] == []
    assert events[-1]["usage"] == used
    choices = [event["choices"][0] for event in events[:-1]]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["length"]
    plain = writer.plain(used)
    if is_chat:
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(choice["delta"]["content"] for choice in choices) == plain["choices"][0]["message"]["content"]
        assert (events[0]["object"], plain["object"]) == ("chat.completion.chunk", "chat.completion")
    else:
        assert "".join(choice["text"] for choice in choices) == plain["choices"][0]["text"]
        assert plain["object"] == "text_completion"


def test_usage_is_streamed_only_when_asked_for() -> None:
    writer = Writer(plan(chat(max_tokens=1), 4096), chat=True, request_id="r", created=0, model="m")
    assert writer.closing(None) == b"data: [DONE]\n\n"
