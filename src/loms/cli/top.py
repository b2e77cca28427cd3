"""``loms top``: the engines, live, in the terminal."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from loms.cli.client import DEFAULT_URL, Client, JsonOption, TokenOption, UrlOption, shown
from loms.cli.query import sparkline
from loms.core.clock import SystemClock, local_and_utc
from loms.core.errors import LomsError
from loms.core.units import format_duration

STATES = {
    "busy": ("▶", "green"),
    "idle": ("○", "cyan"),
    "long_prefill": ("◔", "yellow"),
    "stalled": ("■", "bold red"),
    "dead": ("✖", "bold red"),
    "unknown": ("?", "dim"),
}


def _quantile(q: float, family: str) -> str:
    return f"histogram_quantile({q}, sum by (instance, le) (rate({family}_bucket[1m])))"


NOW = {
    "ttft_p50": _quantile(0.5, "gen_ai_server_time_to_first_token_seconds"),
    "ttft_p99": _quantile(0.99, "gen_ai_server_time_to_first_token_seconds"),
    "itl_p99": _quantile(0.99, "llm_engine_inter_token_latency_seconds"),
    "running": "sum by (instance) (llm_engine_requests_running)",
    "waiting": "sum by (instance) (llm_engine_requests_waiting)",
    "kv": "max by (instance) (llm_engine_kv_cache_utilization_ratio)",
}
THROUGHPUT = "sum by (instance) (rate(llm_engine_tokens_output_total[30s]))"


def top(
    interval: Annotated[float, typer.Option(min=0.5, help="Seconds between refreshes.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one table and leave.")] = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = "",
    as_json: JsonOption = False,
) -> None:
    """Live table of engines: state, latency, throughput, queue, KV cache. Ctrl-C leaves."""
    client = Client(url, token)
    if as_json:
        print(json.dumps(snapshot(client), indent=2))
        return
    console = Console(highlight=False)
    if once:
        console.print(render(snapshot(client), url, console.width))
        return
    with suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            try:
                live.update(render(snapshot(client), url, console.width), refresh=True)
            except LomsError as error:
                live.update(Text(f"{error.message}\n{error.hint}", style="red"), refresh=True)
            time.sleep(interval)


def snapshot(client: Client) -> dict[str, Any]:
    """Engines with their current figures (None where there is none) and the open incidents."""
    now = SystemClock().now_ms() / 1000
    figures: dict[str, dict[str, float]] = {}
    for name, expr in NOW.items():
        for row in client.get("/api/v1/query", query=expr, time=now)["data"]["result"]:
            value = float(row["value"][1])
            if math.isfinite(value):
                figures.setdefault(row["metric"].get("instance", ""), {})[name] = value
    history = client.get("/api/v1/query_range", query=THROUGHPUT, start=now - 300, end=now, step=10)["data"]["result"]
    tokens = {row["metric"].get("instance", ""): [float(v) for _, v in row["values"]] for row in history}
    engines = client.get("/api/engines")
    for engine in engines:
        instance = engine["instance"]
        engine["figures"] = {name: figures.get(instance, {}).get(name) for name in NOW}
        engine["tokens_per_second"] = tokens.get(instance, [])
    return {"engines": engines, "incidents": client.get("/api/incidents", state="open")["incidents"]}


def render(data: Mapping[str, Any], url: str, width: int) -> Group:
    """The whole screen; a narrow terminal gets fewer columns."""
    now = SystemClock().now_ms()
    wide = width >= 136
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("engine", overflow="ellipsis", no_wrap=True, min_width=24)
    table.add_column("state", no_wrap=True)
    for heading in ("TTFT p50", "p99", "ITL p99") if wide else ("TTFT p99",):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("tok/s", justify="right", no_wrap=True)
    if wide:
        table.add_column("5 min", no_wrap=True)
    table.add_column("run/wait", justify="right", no_wrap=True)
    table.add_column("KV cache", no_wrap=True)
    for engine in sorted(data["engines"], key=lambda e: e["state"] not in ("stalled", "dead")):
        table.add_row(*_row(engine, now, wide))
    count = len(data["incidents"])
    summary = f"[bold red]{count} open incident{'s' if count > 1 else ''}[/]" if count else "[green]all quiet[/]"
    head = Text.from_markup(f"[bold]LOMS[/] {shown(url)}  {summary}  [dim]{local_and_utc(now)}[/]")
    notes = [Text.from_markup(f"[bold red]●[/] {shown(incident['title'])}") for incident in data["incidents"][:5]]
    empty = (
        [] if data["engines"] else [Text("No engines yet: name targets in loms.yaml, or start one on a usual port.")]
    )
    return Group(head, *notes, Text(), table, *empty)


def _row(engine: Mapping[str, Any], now_ms: int, wide: bool) -> list[str | Text]:
    figures, tokens = engine["figures"], engine["tokens_per_second"]
    mark, style = STATES[engine["state"]]
    lasted = f" {format_duration(max(1, (now_ms - engine['since_ms']) // 1000))}" if engine["since_ms"] else ""
    kind = f"{engine['engine']}{' ' + engine['version'] if wide else ''}{' simulated' if engine['simulated'] else ''}"
    kv = figures["kv"]
    return [
        Text.from_markup(f"{shown(engine['instance'])} [dim]{shown(kind)}[/]"),
        Text(f"{mark} {engine['state'].replace('_', ' ')}{lasted}", style=style),
        *([_ms(figures["ttft_p50"])] if wide else []),
        _ms(figures["ttft_p99"]),
        *([_ms(figures["itl_p99"])] if wide else []),
        f"{tokens[-1]:.0f}" if tokens else "n/a",
        *([Text(sparkline(tokens, 15), style="green")] if wide else []),
        f"{_count(figures['running'])}/{_count(figures['waiting'])}",
        "n/a" if kv is None else f"{'█' * round(kv * 10):░<10} {kv:4.0%}",
    ]


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "n/a"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def _count(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.0f}"
