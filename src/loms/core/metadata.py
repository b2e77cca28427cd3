"""What is known of metric families beside their samples: of scraped ones, and of those in the catalogue."""

from __future__ import annotations

from loms.core.families import HISTOGRAM
from loms.core.model import Metadata, Shape
from loms.core.semconv import BY_PROMETHEUS

_UNITS = ("seconds", "bytes", "watts", "joules", "celsius", "ratio")
_TYPES = {"updowncounter": "gauge", "info": "gauge"}


def metadata_of(shape: Shape) -> list[Metadata]:
    """One entry for each family that has a TYPE, HELP or UNIT line, in their order.

    >>> metadata_of(Shape(("x",), ((),), {"x": "untyped"}, {"x": "Of x."}))
    [Metadata(family='x', type='unknown', help='Of x.', unit='')]
    """
    types, told = shape.types, dict.fromkeys((*shape.types, *shape.help, *shape.units))
    return [
        Metadata(name, _known(types.get(name, "")), shape.help.get(name, ""), shape.units.get(name, ""))
        for name in told
    ]


def _known(written: str) -> str:
    return "unknown" if written in ("", "untyped") else written


def _catalogued() -> dict[str, Metadata]:
    """Name of a canonical series → what the catalogue says of its family."""
    found = {}
    for family, metric in BY_PROMETHEUS.items():
        unit = next((one for one in _UNITS if family.removesuffix("_total").endswith(f"_{one}")), "")
        entry = Metadata(family, _TYPES.get(metric.instrument, metric.instrument), metric.meaning, unit)
        for part in HISTOGRAM if metric.instrument == "histogram" else ("",):
            found[family + part] = entry
    return found


CANONICAL = _catalogued()
"""By the name of each canonical series."""
