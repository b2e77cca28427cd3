"""``loms series``: which metrics, labels and targets have how many series."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from loms.cli.client import DEFAULT_URL, Client, JsonOption, TokenOption, UrlOption, shown
from loms.core.errors import LomsError
from loms.core.units import format_duration, parse_duration

_FEW = 5
"""Rows of each kind without --top."""


class By(StrEnum):
    """What is counted."""

    metric = "metric"
    label = "label"
    target = "target"


def series(
    top: Annotated[bool, typer.Option("--top", help="The largest of one kind instead of an overview.")] = False,
    by: Annotated[By | None, typer.Option(help="The kind (default: metric); implies --top.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many rows with --top.")] = 20,
    since: Annotated[str, typer.Option(help="Count what was seen in the last 2d, 1w, … (a day at least).")] = "",
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show where the stored series come from: which metrics, labels and targets have most of them."""
    client = Client(url, token)
    span = _seconds(since)
    alone = top or by is not None
    wanted = [(by or By.metric, limit)] if alone else [(each, _FEW) for each in By]
    reports = [client.get("/api/series/top", by=each.value, limit=rows, since=span) for each, rows in wanted]
    if as_json:
        print(json.dumps(reports[0] if alone else reports))
        return
    console = Console(highlight=False)
    first = reports[0]
    console.print(
        f"{first['series']:,} series seen within {format_duration(first['since_seconds'])}, "
        f"{first['stored']:,} of them with samples of their own"
    )
    for report in reports:
        if report["rows"]:
            console.print()
            console.print(_table(report))


def _seconds(since: str) -> float | None:
    """None for the shortest span that the server knows."""
    try:
        return parse_duration(since) if since else None
    except ValueError as error:
        raise LomsError(f"--since: {error}") from None


def _table(report: dict[str, Any]) -> Table:
    by = report["by"]
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(by, overflow="fold")
    for heading in {"label": ("values",), "target": ("added in 1h",)}.get(by, ()):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("series", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    if by == "label":
        table.add_column("mostly on", overflow="fold")
    for row in report["rows"]:
        name = f"{row['job']} {row['name']}" if by == "target" else row["name"]
        extra = {"label": row.get("values"), "target": row.get("added")}.get(by)
        cells = [shown(name), *([f"{extra:,}"] if extra is not None else [])]
        cells += [f"{row['series']:,}", f"{row['share']:.1%}", *([shown(row["metric"])] if by == "label" else [])]
        table.add_row(*cells)
    if hidden := report["groups"] - len(report["rows"]):
        table.caption, table.caption_justify = f"{hidden:,} more", "left"
    return table
