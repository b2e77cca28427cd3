"""``/federate``: the newest sample of each series, as text that another Prometheus scrapes."""

from __future__ import annotations

import re

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response

from loms.core.clock import Clock
from loms.core.errors import LomsError
from loms.core.model import Labels, is_stale
from loms.promql.engine import Engine
from loms.promql.parse import parse_selector
from loms.promql.source import Cancel
from loms.promql.syntax import NAME
from loms.server.prometheus.answer import Answering, parameters_of, selectors_of
from loms.server.wire import format_value

_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*", re.ASCII)
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_TEXT = "text/plain; version=0.0.4; charset=utf-8"


def router(engine: Engine, clock: Clock, lookback_ms: int, answering: Answering) -> APIRouter:
    """``lookback_ms`` is how old the newest sample of a series may be."""
    api = APIRouter(tags=["prometheus"])

    @api.get("/federate")
    async def federate(request: Request) -> Response:
        """The newest samples of the series that match one of ``match[]``."""
        try:
            selectors = selectors_of(await parameters_of(request))
        except LomsError as error:
            return PlainTextResponse(f"{error.message}\n", 400)

        def work(cancel: Cancel) -> Response:
            return Response(exposition(engine, selectors, clock.now_ms(), lookback_ms, cancel), media_type=_TEXT)

        try:
            return await answering.run(request, work)
        except LomsError as error:
            return PlainTextResponse(f"{error.message}\n", 503 if getattr(error, "kind", "") == "timeout" else 500)

    return api


def exposition(engine: Engine, selectors: list[str], at_ms: int, lookback_ms: int, cancel: Cancel | None = None) -> str:
    """Untyped families in alphabetical order. Raises `QueryError` and its kinds."""
    newest: dict[Labels, tuple[int, float]] = {}
    for text in selectors:
        found = engine.stored(parse_selector(text), at_ms - lookback_ms, at_ms, cancel)
        last = found.offsets[1:] - 1
        some = last >= found.offsets[:-1]
        some[some] = ~is_stale(found.values[last[some]])
        for row in some.nonzero()[0].tolist():
            newest[found.labels[row]] = int(found.times_ms[last[row]]), float(found.values[last[row]])
    lines, before = [], ""
    for labels, (time, value) in sorted(newest.items(), key=lambda one: (dict(one[0])[NAME], one[0])):
        name = dict(labels)[NAME]
        if name != before:
            lines.append(f"# TYPE {_name(name)} untyped")
            before = name
        lines.append(f"{_series(name, labels)} {format_value(value)} {time}")
    return "".join(f"{line}\n" for line in lines)


def _series(name: str, labels: Labels) -> str:
    """With an empty ``instance`` where there is none, so that whoever scrapes puts no other there."""
    pairs = {**({} if any(key == "instance" for key, _ in labels) else {"instance": ""}), **dict(labels)}
    own = sorted((key, value) for key, value in pairs.items() if key != NAME)
    written = [f'{_label(key)}="{value.translate(_ESCAPES)}"' for key, value in own]
    plain = _METRIC.fullmatch(name)
    return f"{name if plain else ''}{{{','.join(written if plain else [_name(name), *written])}}}"


def _name(name: str) -> str:
    return name if _METRIC.fullmatch(name) else f'"{name.translate(_ESCAPES)}"'


def _label(name: str) -> str:
    return name if _LABEL.fullmatch(name) else f'"{name.translate(_ESCAPES)}"'
