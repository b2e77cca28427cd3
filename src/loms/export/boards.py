"""The dashboards that there are, by name."""

from __future__ import annotations

from collections.abc import Mapping

from loms.export.kv_cache import KV_CACHE
from loms.export.overview import OVERVIEW
from loms.export.panels import Board

BOARDS: Mapping[str, Board] = {board.name: board for board in (OVERVIEW, KV_CACHE)}
