"""What a Prometheus scrape configuration needs, so that raw series carry what canonical ones are made of."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from loms.engines.engine import Engine, engines
from loms.export.table import tables_of

_HEAD = """\
Scrape configurations for the recording rules that `loms export prometheus` writes.

One job for each engine, to be merged into your own prometheus.yml: what matters are the paths and the relabelling. From
Prometheus 2.43 on this file can also be named under scrape_config_files, after its targets have been filled in."""

_ZONE = """\
LOMS has the label deployment_zone on every series of a target."""
_MODEL = """\
{engine} does not name its model. Name it here, in a job of its own for each model."""
_SPELLING = """\
Asked for OpenMetrics, newer releases spell {spelt}… instead of {prefix}…, and Ray puts ray_ before it."""
_PATHS = """\
Or one of: {paths}"""


def scrape_file(names: Sequence[str], zone: str) -> str:
    """The text of the file for these engines; ``zone`` is the ``deployment_zone`` of all their targets."""
    lines = [f"# {line}".rstrip() for line in _HEAD.splitlines()]
    lines.append("scrape_configs:")
    for name in names:
        lines += _job(name, engines.load()[name], zone)
    return "\n".join(lines) + "\n"


def _job(name: str, engine: type[Engine], zone: str) -> Iterator[str]:
    path, *others = engine.paths
    yield f"  - job_name: {json.dumps(name)}"
    if others:
        yield f"    # {_PATHS.format(paths=', '.join(others))}"
    yield f"    metrics_path: {path}"
    yield "    static_configs:"
    yield "      - targets: []  # host:port of each server"
    yield "    relabel_configs:"
    yield f"      # {_ZONE}"
    yield "      - target_label: deployment_zone"
    yield f"        replacement: {json.dumps(zone, ensure_ascii=False)}"
    if not engine.device and not any(table.agreeable("model") for table in tables_of(name, engine)):
        yield f"      # {_MODEL.format(engine=name)}"
        yield "      # - target_label: model"
        yield "      #   replacement: my-model"
    spellings = dict.fromkeys(_spelling(engines[table.owner]) for table in tables_of(name, engine))
    if any(spellings):
        yield "    metric_relabel_configs:"
    for prefix, regex in filter(None, spellings):
        yield f"      # {_SPELLING.format(spelt=prefix[:-1] + '_', prefix=prefix)}"
        yield "      - source_labels: [__name__]"
        yield f"        regex: {json.dumps(regex)}"
        yield "        target_label: __name__"
        yield f'        replacement: "{prefix}$1"'


def _spelling(engine: type[Engine]) -> tuple[str, str] | None:
    """The engine's prefix, and a regular expression for its names in other spellings; None where there are none."""
    prefix, other = engine.prefix, engine.prefix[:-1] + "_"
    if engine.spell(f"{other}x") != f"{prefix}x" or other == prefix:
        return None
    ray = "(?:ray_)?" if engine.spell(f"ray_{other}x") == f"{prefix}x" else ""
    return prefix, f"{ray}{prefix[:-1]}[_{prefix[-1]}](.+)"
