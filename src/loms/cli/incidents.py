"""``loms incidents``: what is wrong now, what was, and why."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.console import Console

from loms.cli.client import DEFAULT_URL, Client, JsonOption, TokenOption, UrlOption, shown
from loms.core.clock import SystemClock, local_and_utc
from loms.core.units import format_duration

_STYLE = {"critical": "bold red", "warning": "yellow", "info": "cyan", "none": "dim"}


class State(StrEnum):
    """Which incidents."""

    open = "open"
    resolved = "resolved"
    all = "all"


def incidents(
    id: Annotated[str | None, typer.Argument(help="One incident, with all its evidence.")] = None,  # noqa: A002
    state: Annotated[State, typer.Option(help="Which incidents to list.")] = State.all,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many, newest first.")] = 20,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = "",
    as_json: JsonOption = False,
) -> None:
    """List incidents, or show one with its evidence and next step."""
    client = Client(url, token)
    found = (
        client.get(f"/api/incidents/{quote(id, safe='')}")
        if id
        else client.get("/api/incidents", state=state.value, limit=limit)
    )
    if as_json:
        print(json.dumps(found, indent=2))
        return
    console = Console(highlight=False)
    rows = [found] if id else found["incidents"]
    if not rows:
        console.print({"open": "No open incidents.", "resolved": "No resolved incidents."}.get(state, "No incidents."))
    for incident in rows:
        _print(console, incident, whole=bool(id))


def _print(console: Console, incident: dict[str, Any], *, whole: bool) -> None:
    now = SystemClock().now_ms()
    style = _STYLE[incident["severity"]]
    ended = incident["resolved_at_ms"]
    lasted = format_duration(max(1, ((ended or now) - incident["opened_at_ms"]) // 1000))
    state = f"[green]resolved after {lasted}[/]" if ended else f"[{style}]open for {lasted}[/]"
    console.print(f"[{style}]● {incident['severity']}[/]  [bold]{shown(incident['title'])}[/]  {state}")
    console.print(f"  [dim]{local_and_utc(incident['opened_at_ms'])}  {incident['id']}[/]")
    steps: set[str] = set()
    for alert in incident["alerts"]:
        if not (whole or alert["state"] == "firing"):
            continue
        console.print(f"  {shown(alert['rule'])} [dim]{alert['state']}[/]")
        for name in ("summary", "description") if whole else ("summary",):
            text = alert["annotations"].get(name, "").strip()
            if text and (whole or text != incident["title"]):
                console.print(f"    {shown(text)}")
        for fact in alert["evidence"]:
            console.print(f"    • {shown(fact['text'])}")
            if whole and fact["expr"]:
                console.print(f"      [dim]{shown(fact['expr'])}[/]")
        step = alert["annotations"].get("next_step", "").strip()
        if step and step not in steps:
            console.print(f"    [bold]next:[/] {shown(step)}")
        steps.add(step)
