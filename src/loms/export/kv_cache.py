"""The dashboard on the KV cache's health: how full it is, what is reused, and what its shortage causes."""

from __future__ import annotations

from loms.export.panels import ALIKE, AMBER, GREEN, RATE, RED, Board, Panel, Query, per_second, quantile, series

_LOOKED_UP, _FOUND = "llm.engine.prefix_cache.lookup_tokens", "llm.engine.prefix_cache.hit_tokens"
_RANK = f"instance, engine_index, {ALIKE}"
_BY = "{{model}} {{hop}}"


def _share(by: str, over: str = RATE) -> str:
    return f"sum by ({by}) ({per_second(_FOUND, over=over)}) / sum by ({by}) ({per_second(_LOOKED_UP, over=over)})"


_NOW = (
    Panel(
        "Fullest",
        (Query(f"max by (hop) ({series('llm.engine.kv_cache.utilization')})", "{{hop}}"),),
        "percentunit",
        "The fullest pool. Above 85 %: send new requests elsewhere, shorten the context, or add replicas.",
        width=6,
        kind="number",
        limits={0.7: AMBER, 0.85: RED},
        most=1.0,
    ),
    Panel(
        "Found in the prefix cache, 5 min",
        (Query(_share(ALIKE, "5m"), _BY),),
        "percentunit",
        "Share of the tokens looked up that were found. Below 85 % where prompts share a beginning: look whether the "
        "system prompt changes from request to request, and whether the load balancer keeps users on one replica.",
        width=6,
        kind="number",
        limits={0.5: AMBER, 0.85: GREEN},
        below=RED,
        most=1.0,
    ),
    Panel(
        "Preempted",
        (Query(f"sum by (hop) ({per_second('llm.engine.requests.preempted')})", "{{hop}}"),),
        "ops",
        "Running requests thrown back into the queue for want of KV blocks; what they had is computed again.",
        width=6,
        kind="number",
        limits={0.1: AMBER, 1: RED},
    ),
    Panel(
        "Waiting",
        (Query(f"sum by (hop) ({series('llm.engine.requests.waiting')})", "{{hop}}"),),
        "short",
        "Requests that wait. With a full pool they wait for KV blocks, otherwise for a place in the batch.",
        width=6,
        kind="number",
    ),
)

_FULL = (
    Panel(
        "In use",
        (Query(series("llm.engine.kv_cache.utilization")),),
        "percentunit",
        "Used share of each pool. Above 85 % the next long prompts wait or preempt. If it climbs while the load stays, "
        "requests are longer than before, or something holds blocks: compare with the running requests.",
        width=12,
        limits={0.85: RED},
        most=1.0,
    ),
    Panel(
        "Tokens in the pool",
        (
            Query(series("llm.engine.kv_cache.usage"), "used {{instance}} {{engine_index}}"),
            Query(series("llm.engine.kv_cache.capacity"), "room for {{instance}} {{engine_index}}"),
        ),
        "short",
        "Used and possible tokens of each pool. The room is fixed at the start; if it differs between replicas, so "
        "does the memory they were given. For vLLM only LOMS itself can tell: the figures stand in labels.",
        width=12,
    ),
)

_REUSE = (
    Panel(
        "Found in the prefix cache",
        (
            Query(_share(_RANK), "{{instance}} {{engine_index}}"),
            Query(
                series("llm.engine.prefix_cache.hit_ratio"), "{{instance}} {{engine_index}} (the engine's own figure)"
            ),
        ),
        "percentunit",
        "Share of the looked-up tokens that were found, against 85 %. If one replica is below its peers, requests "
        "with the same beginning do not come to it; if all fall, prompts have changed, or the pool is too small to "
        "keep them.",
        limits={0.85: GREEN},
        below=RED,
        most=1.0,
    ),
    Panel(
        "Tokens looked up and found",
        (
            Query(f"sum by ({ALIKE}) ({per_second(_LOOKED_UP)})", f"looked up {_BY}"),
            Query(f"sum by ({ALIKE}) ({per_second(_FOUND)})", f"found {_BY}"),
        ),
        "short",
        "Tokens per second. What lies between the two lines has to be computed.",
    ),
    Panel(
        "Prompt tokens reused",
        (
            Query(
                f"sum by (cache_tier, {ALIKE}) ({per_second('llm.engine.tokens.input.cached')})",
                "{{model}} {{cache_tier}} {{hop}}",
            ),
            Query(f"sum by ({ALIKE}) ({per_second('llm.engine.tokens.input')})", f"all {_BY}"),
        ),
        "short",
        "Prompt tokens of served requests per second whose KV was reused, by where it lay, beside all of them.",
    ),
)

_EFFECT = (
    Panel(
        "Waiting against use",
        (
            Query(f"sum by (instance, hop) ({series('llm.engine.requests.waiting')})", "waiting {{instance}}"),
            Query(
                f"max by (instance, hop) ({series('llm.engine.kv_cache.utilization')})",
                "in use {{instance}}",
                right=True,
            ),
        ),
        "short",
        "A queue with a full pool is want of KV memory: more replicas, shorter contexts, a quantised cache. A queue "
        "with an empty one is a limit on concurrent requests: raise max_num_seqs or its like.",
    ),
    Panel(
        "Preempted",
        (Query(f"sum by (instance, engine_index, hop) ({per_second('llm.engine.requests.preempted')})"),),
        "ops",
        "Any preemption is work done twice. If it goes on: fewer concurrent requests, or more memory for the cache.",
        limits={0.1: AMBER, 1: RED},
    ),
    Panel(
        "P95 of queue and first token",
        (
            Query(quantile(0.95, "llm.engine.request.queue.duration"), f"queue {_BY}"),
            Query(quantile(0.95, "gen_ai.server.time_to_first_token"), f"first token {_BY}"),
        ),
        "s",
        "What users feel of a full pool: the wait in the queue. The rest of the time to first token is prefill, which "
        "grows as less is found in the prefix cache.",
    ),
)

_TRANSFER_BY = "connector, direction, engine, model, hop"

_TRANSFER = (
    Panel(
        "P99 of transfers",
        (
            Query(
                quantile(0.99, "llm.engine.kv_transfer.duration", _TRANSFER_BY), "{{connector}} {{direction}} {{model}}"
            ),
        ),
        "s",
        "Time to move KV blocks between servers or tiers. Reads above 50 ms stand in the way of the first token: look "
        "at the network or the storage behind the connector.",
        width=12,
        limits={0.05: RED},
    ),
    Panel(
        "Moved",
        (
            Query(
                f"sum by ({_TRANSFER_BY}) ({per_second('llm.engine.kv_transfer.io')})",
                "{{connector}} {{direction}} {{model}}",
            ),
        ),
        "Bps",
        "KV bytes per second. Compare with what the link can do; a tier that is written and never read is of no use.",
        width=12,
    ),
)

KV_CACHE = Board(
    "kv-cache",
    "LLM engines: KV-cache health",
    "How full the KV cache is, what of it is reused, and what its shortage causes.",
    {
        "Now": _NOW,
        "How full": _FULL,
        "What is reused": _REUSE,
        "What it causes": _EFFECT,
        "Between servers and tiers": _TRANSFER,
    },
)
