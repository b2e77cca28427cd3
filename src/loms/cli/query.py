"""``loms query``: PromQL from the terminal."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any

import typer
from pydantic import SecretStr
from rich.console import Console
from rich.table import Table

from loms.cli.client import DEFAULT_URL, Client, JsonOption, TokenOption, UrlOption, shown
from loms.core.clock import SystemClock, local_and_utc
from loms.core.errors import LomsError
from loms.core.units import parse_duration

BLOCKS = "▁▂▃▄▅▆▇█"
Ask = Callable[[str, Mapping[str, str]], Any]
"""Path below ``/api/v1`` and what is asked → the answer's data."""


def query(
    expr: Annotated[str, typer.Argument(help="A PromQL expression.")],
    since: Annotated[str, typer.Option(help="Evaluate over the last 15m, 1h, …, and draw it.")] = "",
    step: Annotated[str, typer.Option(help="Distance of points with --since (default: 60 points).")] = "",
    time: Annotated[str, typer.Option(help="Evaluate at this moment (Unix seconds or RFC 3339).")] = "",
    source: Annotated[
        str, typer.Option(metavar="URL", help="Ask this Prometheus-compatible API, and no LOMS; --token is for it.")
    ] = "",
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = "",
    as_json: JsonOption = False,
) -> None:
    """Evaluate a PromQL expression now, or over a span of time with --since."""
    ask = _remote(source, token) if source else _loms(url, token)
    if since:
        span = _seconds("--since", since)
        end = SystemClock().now_ms() / 1000
        width = _seconds("--step", step) if step else max(1.0, span / 60)
        data = ask(
            "query_range", {"query": expr, "start": f"{end - span:.3f}", "end": f"{end:.3f}", "step": f"{width:g}"}
        )
    else:
        data = ask("query", {"query": expr} | ({"time": time} if time else {}))
    if as_json:
        print(json.dumps(data))
        return
    console = Console(highlight=False)
    if data["resultType"] in ("scalar", "string"):
        console.print(data["result"][1])
    elif not data["result"]:
        console.print("[dim]no series[/]")
    else:
        console.print(_table(data, console.width))


def _loms(url: str, token: str) -> Ask:
    client = Client(url, token)
    return lambda path, asked: client.get(f"/api/v1/{path}", **asked)["data"]


def _remote(url: str, token: str) -> Ask:
    from loms.core.settings import Source
    from loms.promql.remote import RemotePrometheus

    source = Source().model_copy(update={"url": url, "bearer_token": SecretStr(token) if token else None})
    return RemotePrometheus(source).asked


def _seconds(option: str, text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise LomsError(f"{option}: {error}") from None


def _table(data: Mapping[str, Any], width: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("series", overflow="fold", min_width=min(24, width // 3))
    cells = min(60, max(8, width - 70))
    over_time = data["resultType"] == "matrix"
    for heading in ("", "min", "max", "last") if over_time else ("value",):
        table.add_column(heading, justify="left" if heading == "" else "right", no_wrap=True)
    for row in data["result"]:
        name = shown(series_text(row["metric"]))
        if over_time:
            values = [float(v) for _, v in row["values"]] or [math.nan]
            finite = [v for v in values if math.isfinite(v)] or [math.nan]
            table.add_row(name, sparkline(values, cells), *(f"{v:.6g}" for v in (min(finite), max(finite), values[-1])))
        else:
            table.add_row(name, row["value"][1])
    if over_time and (times := [time for row in data["result"] for time, _ in row["values"]]):
        first, last = min(times), max(times)
        table.caption = f"{local_and_utc(int(first * 1000))} … {local_and_utc(int(last * 1000))}"
    return table


def series_text(labels: Mapping[str, str]) -> str:
    """A series as PromQL writes it.

    >>> series_text({"__name__": "up", "job": "vllm"})
    'up{job="vllm"}'
    """
    inner = ", ".join(f"{k}={json.dumps(v, ensure_ascii=False)}" for k, v in labels.items() if k != "__name__")
    return labels.get("__name__", "") + (f"{{{inner}}}" if inner or "__name__" not in labels else "")


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """Values as a line of blocks, at most ``width`` wide (each cell the maximum of its share); gaps are blank.

    >>> sparkline([0, 1, 2, 3, float("nan"), 7])
    '▁▂▃▄ █'
    """
    if len(values) > width:
        cuts = [len(values) * i // width for i in range(width + 1)]
        values = [max(values[a:b], key=lambda v: v if math.isfinite(v) else -math.inf) for a, b in pairwise(cuts)]
    finite = [v for v in values if math.isfinite(v)]
    if not finite:
        return " " * len(values)
    low, high = min(0.0, *finite), max(finite)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((v - low) * scale)] if math.isfinite(v) else " " for v in values)
