"""The overview dashboard: are the engines up, how much do they do, how long does it take, and what ends badly."""

from __future__ import annotations

from loms.export.panels import ALIKE, AMBER, RED, Board, Panel, Query, mean, per_second, quantile, quantiles, series

_SEEN = " or ".join(
    f"last_over_time({series(canonical, suffix)}[1h])"
    for canonical, suffix in (
        ("llm.engine.requests.waiting", ""),
        ("llm.engine.requests.running", ""),
        ("gen_ai.server.request.duration", "_count"),
    )
)
"""What was an engine in the last hour; one that is down has no series of its own any more."""
_UP = f"up and on (job, instance) ({_SEEN})"
_FAILED = per_second("llm.engine.requests.finished", matchers='outcome=~"error|rejected"')
_ENDED = per_second("llm.engine.requests.finished", matchers='outcome!=""')
_BY = "{{model}} {{hop}}"

_STATE = (
    Panel(
        "Up",
        (Query(f"sum({_UP})", "up"),),
        "none",
        "Engines of the last hour that Prometheus can scrape. An engine that is up may still hang: compare with the "
        "tokens per second.",
        width=3,
        kind="number",
    ),
    Panel(
        "Down",
        (Query(f"sum(1 - ({_UP}))", "down"),),
        "none",
        "Engines of the last hour that cannot be scraped. See under Status → Targets why, then how the process ended: "
        "journalctl or kubectl logs --previous, and dmesg for out-of-memory kills and XID errors.",
        width=3,
        kind="number",
        limits={1: RED},
    ),
    Panel(
        "Running",
        (Query(f"sum by (hop) ({series('llm.engine.requests.running')})", "{{hop}}"),),
        "short",
        "Requests in the executing batches. Running without tokens per second is a stall.",
        width=4,
        kind="number",
    ),
    Panel(
        "Waiting",
        (Query(f"sum by (hop) ({series('llm.engine.requests.waiting')})", "{{hop}}"),),
        "short",
        "Accepted but not executing. If it grows while Running stays: add replicas, or see whether the KV cache is "
        "full.",
        width=4,
        kind="number",
    ),
    Panel(
        "Output tokens",
        (Query(f"sum by (hop) ({per_second('llm.engine.tokens.output')})", "{{hop}}"),),
        "short",
        "Generated tokens per second. At 0 with requests running the engine hangs: take a stack dump before it is "
        "restarted.",
        width=5,
        kind="number",
    ),
    Panel(
        "P99 by model",
        (Query(quantile(0.99, "gen_ai.server.request.duration"), _BY),),
        "s",
        "P99 of whole requests, against the default hard limit of 2.5 s. Set the limit to what you promise; long "
        "answers take longer than that by nature.",
        width=5,
        kind="number",
        limits={2.5: RED},
    ),
    Panel(
        "Scraped",
        (Query(_UP, "{{job}} {{instance}}"),),
        "none",
        "Whether each engine could be scraped. Gaps at many engines at once are the network or Prometheus.",
        width=24,
        kind="states",
    ),
)

_REQUESTS = (
    Panel(
        "Running",
        (Query(series("llm.engine.requests.running")),),
        "short",
        "The batch of each engine. One that is much smaller than its peers' gets less traffic, or hangs.",
    ),
    Panel(
        "Waiting",
        (Query(series("llm.engine.requests.waiting"), "{{instance}} {{engine_index}} {{reason}}"),),
        "short",
        "The queue of each engine. If one has a queue and its peers have none, look at the load balancer.",
    ),
    Panel(
        "Came and ended",
        (
            Query(f"sum by ({ALIKE}) ({per_second('llm.engine.requests.started')})", f"came {_BY}"),
            Query(
                f"sum by (outcome, finish_reason, hop) ({per_second('llm.engine.requests.finished')})",
                "{{outcome}} {{finish_reason}} {{hop}}",
            ),
        ),
        "reqps",
        "Requests per second by how they ended. Many that end by length are cut off: raise max_tokens. Cancelled ones "
        "are clients that gave up: look at the latency.",
    ),
    Panel(
        "Share that failed",
        (Query(f"sum by ({ALIKE}) ({_FAILED}) / sum by ({ALIKE}) ({_ENDED})", _BY),),
        "percentunit",
        "Errors and rejections among all requests that ended with a known outcome. Rejections are a full queue; for "
        "errors read the engine's log.",
        limits={0.01: AMBER, 0.05: RED},
        most=1.0,
    ),
    Panel(
        "Preempted",
        (Query(f"sum by (instance, engine_index, hop) ({per_second('llm.engine.requests.preempted')})"),),
        "ops",
        "Running requests thrown back into the queue, because the KV cache was full. Each one is computed again: lower "
        "the number of concurrent requests, or give the cache more memory.",
        limits={0.1: AMBER, 1: RED},
    ),
    Panel(
        "KV cache in use",
        (Query(series("llm.engine.kv_cache.utilization")),),
        "percentunit",
        "Used share of each engine's KV pool. Above 85 % the next long prompts wait or preempt; see the dashboard on "
        "the KV cache.",
        limits={0.85: RED},
        most=1.0,
    ),
)

_LATENCY = (
    Panel(
        "Whole request",
        (
            *quantiles("gen_ai.server.request.duration"),
            Query(mean("gen_ai.server.request.duration"), f"mean {_BY}"),
        ),
        "s",
        "From arrival in the server to the last token, by the engine's clock. Read it beside the output length: a long "
        "answer takes long.",
        limits={2.5: RED},
    ),
    Panel(
        "Time to first token",
        quantiles("gen_ai.server.time_to_first_token"),
        "s",
        "From arrival to the first generated token; contains queueing and prefill: see below which of them grew.",
    ),
    Panel(
        "Between tokens",
        quantiles("llm.engine.inter_token.latency", f"{ALIKE}, granularity", "{{model}} {{hop}} per {{granularity}}"),
        "s",
        "The gap between successive outputs. It grows with the batch; above 200 ms readers notice. Engines measure it "
        "per token, per step or per chunk, which cannot be compared.",
        limits={0.2: RED},
    ),
    Panel(
        "P99 of the first token, by instance",
        (Query(quantile(0.99, "gen_ai.server.time_to_first_token", f"instance, {ALIKE}"), "{{instance}} {{hop}}"),),
        "s",
        "One instance above its peers: compare its queue, its KV cache and its GPU's clocks with theirs.",
    ),
    Panel(
        "Where the time goes",
        tuple(
            Query(mean(f"llm.engine.request.{phase}.duration"), f"{phase} {_BY}")
            for phase in ("queue", "prefill", "decode")
        ),
        "s",
        "Mean time of a request in each phase. Queue: too few replicas or a full KV cache. Prefill: longer prompts, or "
        "fewer found in the prefix cache. Decode: longer answers, or larger batches.",
    ),
    Panel(
        "P95 in the queue",
        (Query(quantile(0.95, "llm.engine.request.queue.duration"), _BY),),
        "s",
        "What one in twenty requests waits before anything happens. If it grows, add replicas before the queue does.",
    ),
)

_TOKENS = (
    Panel(
        "Tokens in",
        (
            Query(f"sum by ({ALIKE}) ({per_second('llm.engine.tokens.input')})", _BY),
            Query(f"sum by ({ALIKE}) ({per_second('llm.engine.tokens.input.cached')})", f"of them reused {_BY}"),
        ),
        "short",
        "Prompt tokens per second, and those of them whose KV was reused. Engines that count at the end of a request "
        "come in bursts.",
    ),
    Panel(
        "Tokens out",
        (Query(f"sum by ({ALIKE}) ({per_second('llm.engine.tokens.output')})", _BY),),
        "short",
        "Generated tokens per second: what the fleet delivers. If it falls while requests wait, an engine is slow or "
        "hangs.",
    ),
    Panel(
        "Length of prompts and answers",
        (
            Query(mean("llm.engine.request.input_tokens"), f"prompt {_BY}"),
            Query(mean("llm.engine.request.output_tokens"), f"answer {_BY}"),
        ),
        "short",
        "Mean tokens per request. A change here explains most changes of latency: it is the users, not the engine.",
    ),
)

OVERVIEW = Board(
    "overview",
    "LLM engines: overview",
    "Are the engines up, how much do they do, how long does it take, and what ends badly.",
    {"State": _STATE, "Requests": _REQUESTS, "Latency": _LATENCY, "Tokens": _TOKENS},
)
