"""``loms traces``: requests as spans tell them, listed or one as a tree."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.tree import Tree

from loms.cli.client import DEFAULT_URL, Client, JsonOption, TokenOption, UrlOption, shown
from loms.core.clock import local_and_utc
from loms.store.traces import full_id

_WIDE = 160
"""Width of what is no terminal."""
_BAR = 24
"""Cells of the line that shows where in its trace a span lies."""
_INDENT = 4
"""Cells that each level is moved to the right."""


def traces(
    id: Annotated[str | None, typer.Argument(help="One trace, drawn as a tree.")] = None,  # noqa: A002
    service: Annotated[str, typer.Option(help="Only traces with a span of this service.")] = "",
    name: Annotated[str, typer.Option(help="… of this name.")] = "",
    attribute: Annotated[
        list[str] | None,
        typer.Option("--attribute", "-a", help="key, key=value, key!=value, key=~regex or key>1 (repeatable)."),
    ] = None,
    status: Annotated[str, typer.Option(help="… that ended so: error, ok or unset.")] = "",
    min_duration: Annotated[str, typer.Option(help="… that took at least 1s, 100ms, …")] = "",
    max_duration: Annotated[str, typer.Option(help="… that took at most 1s, 100ms, …")] = "",
    since: Annotated[str, typer.Option(help="Of the last 15m, 1h, …")] = "1h",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many, newest first.")] = 20,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = "",
    as_json: JsonOption = False,
) -> None:
    """List traces with a span that fulfils all that is asked, or draw one with its durations."""
    client = Client(url, token)
    if id is not None:
        found = client.get(f"/api/traces/{full_id(id)}")
    else:
        texts = {"service": service, "name": name, "status": status}
        texts |= {"min_duration": min_duration, "max_duration": max_duration}
        asked = {key: text for key, text in texts.items() if text}
        found = client.get("/api/traces", attribute=attribute or None, since=since, limit=limit, **asked)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDE)
    if id is not None:
        console.print(drawn(found, console.width))
    elif not found["traces"]:
        console.print("No traces.")
    else:
        console.print(_table(found["traces"]))


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("started", "duration", "spans", "errors"):
        table.add_column(heading, justify="left" if heading == "started" else "right", no_wrap=True)
    table.add_column("service and name", overflow="fold", min_width=16)
    table.add_column("trace", no_wrap=True)
    for row in rows:
        errors = f"[red]{row['errors']}[/]" if row["errors"] else "0"
        others = len(row["services"]) - 1
        name = f"[cyan]{shown(row['root_service'])}[/] {shown(row['root_name'])}" + (
            f" [dim]+{others}[/]" if others else ""
        )
        started = local_and_utc(int(row["start_ms"])).partition(" (")[0].partition("-")[2]
        cells = (started, lasting(row["duration_ms"]), str(row["spans"]), errors)
        table.add_row(*cells, name, row["trace_id"].lstrip("0") or "0")
    return table


def drawn(trace: dict[str, Any], width: int = _WIDE) -> Tree:
    """A trace as a tree: name, duration, and where in the whole each span lies.

    Levels take up to a third of ``width``. What lies deeper stands one below the other, each with its level.
    """
    deepest = max(2, width // 3 // _INDENT)
    count = f"{trace['spans']} span{'' if trace['spans'] == 1 else 's'}"
    wrong = f", [red]{trace['errors']} with errors[/]" if trace["errors"] else ""
    cut = ", [yellow]there are more than are shown[/]" if trace["cut"] else ""
    tree = Tree(
        f"[bold]{trace['trace_id']}[/]  {lasting(trace['duration_ms'])}, {count}{wrong}{cut}\n"
        f"[dim]{local_and_utc(int(trace['start_ms']))}[/]"
    )
    rows = [(tree, root, "") for root in reversed(trace["roots"])]
    while rows:
        place, span, service = rows.pop()
        branch = place.add(_line(span, service, trace["duration_ms"], deepest))
        below = branch if span["level"] < deepest else place
        rows += [(below, child, span["service"]) for child in reversed(span["children"])]
    return tree


def _line(span: dict[str, Any], service_above: str, whole_ms: float, deepest: int) -> str:
    style = "red" if span["status"] == "Error" else "bold"
    service = "" if span["service"] == service_above else f"[cyan]{shown(span['service'])}[/] "
    level = f"[dim]level {span['level']}:[/] " if span["level"] > deepest else ""
    text = f"{level}{service}[{style}]{shown(span['name'])}[/]  {lasting(span['duration_ms'])}"
    text += f"  [dim]{bar(span['offset_ms'], span['duration_ms'], whole_ms)}[/]"
    return text + (f"  [red]{shown(span['status_message'])}[/]" if span["status_message"] else "")


def bar(offset_ms: float, duration_ms: float, whole_ms: float, cells: int = _BAR) -> str:
    """Where a span lies in its trace.

    >>> bar(50, 25, 100, 8)
    '····━━··'
    """
    if whole_ms <= 0:
        return "━" * cells
    begin = min(cells - 1, int(cells * max(0.0, offset_ms) / whole_ms))
    length = max(1, min(cells - begin, round(cells * duration_ms / whole_ms)))
    return "·" * begin + "━" * length + "·" * (cells - begin - length)


def lasting(ms: float) -> str:
    """A duration in three digits or so, or in two units.

    >>> lasting(0.25), lasting(12.345), lasting(999.6), lasting(1234.5)
    ('250 µs', '12.3 ms', '1 s', '1.23 s')
    >>> lasting(125_000), lasting(5_400_000), lasting(262_800_000)
    ('2 min 5 s', '1 h 30 min', '3 d 1 h')
    """
    if round(ms * 1000) < 1000:
        return f"{ms * 1000:.0f} µs"
    for unit, size, most in (("ms", 1, 1000), ("s", 1000, 60)):
        if (value := float(f"{ms / size:.3g}")) < most:
            return f"{value:g} {unit}"
    for large, unit, size, most in (("min", "s", 1000, 3600), ("h", "min", 60_000, 24 * 60)):
        if (count := round(ms / size)) < most:
            return f"{count // 60} {large} {count % 60} {unit}"
    hours = round(ms / 3_600_000)
    return f"{hours // 24} d {hours % 24} h"
