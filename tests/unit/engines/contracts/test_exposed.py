from __future__ import annotations

from loms.engines.contracts.contract import Exposed, Observed, observe
from loms.engines.vllm import Vllm
from loms.ingest.exposition import ExpositionReader

PLAIN = """
# HELP vllm:prompt_tokens_total Tokens.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 3
# TYPE vllm:prompt_tokens_created gauge
vllm:prompt_tokens_created{engine="0",model_name="m"} 1.7e9
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{engine="0",le="8.0"} 1
vllm:iteration_tokens_total_bucket{engine="0",le="1.0"} 0
vllm:iteration_tokens_total_bucket{engine="1",le="+Inf"} 1
vllm:iteration_tokens_total_sum{engine="0"} 4
vllm:iteration_tokens_total_count{engine="0"} 1
# TYPE http_requests_total counter
# TYPE http_request_size_bytes summary
http_request_size_bytes{quantile="0.5",handler="/v1"} 2
http_request_size_bytes_count{handler="/v1"} 1
http_request_size_bytes_sum{handler="/v1"} 2
# TYPE nv_inference_count counter
nv_inference_count{model="m"} 1
nobody_said_what{a="b"} 1
"""

OPENMETRICS = """# TYPE vllm_prompt_tokens counter
vllm_prompt_tokens_total{engine="0"} 3
vllm_prompt_tokens_created{engine="0"} 1.7e9
# TYPE vllm_generation_tokens counter
# TYPE vllm_num_requests_running gauge
vllm_num_requests_running{engine="0"} 1
# TYPE python info
python_info{version="3.12"} 1
# TYPE load unknown
load 1
# EOF
"""


def seen(text: str, content_type: str = "text/plain") -> Observed:
    shape = ExpositionReader().read(text.encode(), content_type).shape
    return observe(shape, "vllm", "0.32.0", Vllm.spell)


def test_families_of_the_plain_text_format() -> None:
    observed = seen(PLAIN)
    assert (observed.engine, observed.version) == ("vllm", "0.32.0")
    assert dict(observed.families) == {
        "vllm:prompt_tokens_total": Exposed("counter", frozenset({"engine", "model_name"})),
        "vllm:iteration_tokens_total": Exposed("histogram", frozenset({"engine"}), (1.0, 8.0, float("inf"))),
        "http_requests_total": Exposed("counter"),
        "http_request_size_bytes": Exposed("summary", frozenset({"handler"})),
        "nv_inference_count": Exposed("counter", frozenset({"model"})),
        "nobody_said_what": Exposed("untyped", frozenset({"a"})),
    }


def test_openmetrics_gives_the_same_names() -> None:
    observed = seen(OPENMETRICS, "application/openmetrics-text; version=1.0.0")
    assert dict(observed.families) == {
        "vllm:prompt_tokens_total": Exposed("counter", frozenset({"engine"})),
        "vllm:generation_tokens_total": Exposed("counter"),
        "vllm:num_requests_running": Exposed("gauge", frozenset({"engine"})),
        "python_info": Exposed("gauge", frozenset({"version"})),
        "load": Exposed("untyped"),
    }


def test_nothing_is_exposed_by_an_empty_page() -> None:
    assert dict(seen("").families) == {}
