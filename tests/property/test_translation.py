"""Whatever an engine shows and hides from scrape to scrape, its canonical counters never double and never go back.

The expositions are recorded ones, and those of many releases that tell one story (``tests/data/written/README.md``).
Between scrapes every cumulative raw series grows by the same share, so a canonical series must grow by that share of
what a translator without a past would read from the families that are there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from loms.core.model import Ids, Labels, Series, Shape, labels_of
from loms.engines.engine import Identity
from loms.engines.translate import Translator
from loms.engines.watch import PROGRESS_TOTAL
from loms.ingest.exposition import ExpositionReader

DATA = Path(__file__).parents[1] / "data"
TARGET = labels_of({"job": "engines", "instance": "10.0.0.7:8000"})
MODEL = "meta-llama/Llama-3.1-8B-Instruct"
ENGINES = ("vllm", "sglang", "tgi", "tensorrt-llm", "llamacpp", "xllamacpp")
WRITTEN = sorted(p for p in (DATA / "written").glob("*.txt") if p.stem.rpartition("-")[0].startswith(ENGINES))
RECORDED = sorted(p for p in DATA.glob("*/*.txt") if p.parent.name.rpartition("-")[0] in ENGINES)

CORE = (
    "vllm:generation_tokens",
    "sglang:generation_tokens",
    "tgi_request_generated_tokens",
    "trtllm_request_success",
    "llamacpp:tokens_predicted",
)
"""Families that are always there: by one of them a restart is seen."""
GROWING_GAUGES = ("sglang:total_retracted_reqs",)

STORY = {
    "gen_ai_server_request_duration_seconds_count": {100},
    "gen_ai_server_time_to_first_token_seconds_count": {100},
    "gen_ai_server_time_per_output_token_seconds_count": {100},
    "llm_engine_inter_token_latency_seconds_count": {6689},
    "llm_engine_request_queue_duration_seconds_count": {100},
    "llm_engine_request_prefill_duration_seconds_count": {100},
    "llm_engine_request_decode_duration_seconds_count": {100},
    "llm_engine_request_inference_duration_seconds_count": {100},
    "llm_engine_requests_started_total": {105},
    # vLLM 0.32 counts the rejected ones, of which there are none, apart.
    "llm_engine_requests_finished_total": {100, 0},
    "llm_engine_requests_preempted_total": {5},
    "llm_engine_tokens_input_total": {12345},
    "llm_engine_tokens_input_cached_total": {4000},
    "llm_engine_tokens_output_total": {6789},
    "llm_engine_request_input_tokens_count": {100},
    "llm_engine_request_output_tokens_count": {100},
    # SGLang's prompts stand for its look-ups where those are not counted.
    "llm_engine_prefix_cache_lookup_tokens_total": {12000, 12345},
    "llm_engine_prefix_cache_hit_tokens_total": {4000},
    "llm_engine_iteration_tokens_count": {2500},
    # Forward passes; TGI's have 43 prefills beside them.
    "llm_engine_iteration_duration_seconds_count": {2500, 2543},
    "llm_engine_spec_decode_accepted_tokens_total": {0},
    "http_server_request_duration_seconds_count": {100},
}
"""What each counter may be, in total."""

Values = dict[tuple[str, Labels], float]


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """One exposition, of which any families can be shown at any time of its life."""

    shape: Shape
    values: np.ndarray
    families: tuple[str, ...]
    """Of each sample."""
    cumulative: np.ndarray
    identity: Identity

    @property
    def droppable(self) -> list[str]:
        return sorted({f for f in self.families if not f.startswith(CORE)})

    def chosen(self, bits: int) -> frozenset[str]:
        """Those of the families that may be dropped whose bit is set."""
        return frozenset(f for i, f in enumerate(self.droppable) if bits >> i & 1)


@cache
def read(path: Path) -> Text:
    exposition = ExpositionReader().read(path.read_bytes(), "text/plain; version=0.0.4")
    types = exposition.shape.types
    families = tuple(family(name, types) for name in exposition.shape.names)
    cumulative = [
        types.get(f) in ("counter", "histogram") or f in GROWING_GAUGES or (n != f and types.get(f) == "summary")
        for f, n in zip(families, exposition.shape.names, strict=True)
    ]
    release = path.stem if path.parent.name == "written" else path.parent.name
    version = release.removesuffix("-v0").removesuffix("-hidden-shown").rpartition("-")[2]
    return Text(exposition.shape, exposition.values, families, np.array(cumulative), Identity(version, MODEL))


def family(name: str, types: Iterable[str]) -> str:
    bases = (name.removesuffix(suffix) for suffix in ("", "_bucket", "_sum", "_count"))
    return next((base for base in bases if base in types), name)


class Target:
    """A translator that is shown one exposition after the other."""

    def __init__(self, identity: Identity) -> None:
        self._translator = Translator(TARGET)
        self._translator.identified(identity)

    def scrape(self, shape: Shape, values: np.ndarray) -> Values:
        """Canonical series and their values."""
        ids = raw_ids(shape)
        plan = self._translator.plan(shape, ids)
        derived = plan.derive(values).tolist()
        raw = dict(zip(ids.tolist(), values.tolist(), strict=True))
        told = {(s.name, s.labels): raw[s.id] for s in plan.aliases}
        return told | {(s.name, s.labels): v for s, v in zip(plan.derived, derived, strict=True)}


@cache
def raw_ids(shape: Shape) -> Ids:
    return np.array([Series.of(n, ls).id for n, ls in zip(shape.names, shape.labels, strict=True)], dtype=np.uint64)


def part(text: Text, dropped: frozenset[str]) -> tuple[Shape, np.ndarray]:
    """The shape without these families, and the positions that stay."""
    kept = [i for i, f in enumerate(text.families) if f not in dropped]
    names, labels = tuple(text.shape.names[i] for i in kept), tuple(text.shape.labels[i] for i in kept)
    return Shape(names, labels, {f: t for f, t in text.shape.types.items() if f not in dropped}), np.array(kept)


def counters(values: Values) -> Values:
    """The cumulative ones; LOMS's own progress adds up what is told several times."""
    ends = ("_total", "_count", "_sum", "_bucket")
    return {key: value for key, value in values.items() if key[0].endswith(ends) and key[0] != PROGRESS_TOTAL}


def masks(text: Text) -> st.SearchStrategy[int]:
    """Any subset of the families that may be dropped."""
    return st.integers(0, 2 ** len(text.droppable) - 1)


@given(st.data(), st.sampled_from(WRITTEN))
@settings(max_examples=150, deadline=None)
def test_no_subset_of_families_makes_a_counter_tell_more_than_the_story(data: st.DataObject, path: Path) -> None:
    text = read(path)
    shape, kept = part(text, text.chosen(data.draw(masks(text))))
    totals: dict[str, float] = defaultdict(float)
    for (name, _), value in Target(text.identity).scrape(shape, text.values[kept]).items():
        totals[name] += value
    for name, total in totals.items():
        if name in STORY:
            assert total in STORY[name], (name, total)
    assert {name for name in totals if name.endswith("_count")} <= set(STORY)


def moves(text: Text) -> bool:
    """Whether anything by which a restart is seen has been counted at all."""
    core = [f.startswith(CORE) for f in text.families]
    return bool((text.values[np.array(core) & text.cumulative] > 0).any())


@dataclass(frozen=True, slots=True)
class Life:
    """An exposition, and scrapes of it."""

    path: Path
    missing: list[int]
    """Sets of families that are not there."""
    scrapes: list[tuple[int, bool, int]]
    """Age, whether the engine has been restarted just before, and which set is missing."""


@st.composite
def lives(draw: st.DrawFn) -> Life:
    path = draw(st.sampled_from(WRITTEN + RECORDED))
    text = read(path)
    missing = [*draw(st.lists(masks(text), max_size=2)), 0]  # families come back as often as they go
    scrapes, age = [], 0
    for _ in range(draw(st.integers(2, 6))):
        restarted = age > 1 and moves(text) and draw(st.integers(0, 4)) == 0
        age = draw(st.integers(1, age - 1)) if restarted else age + draw(st.integers(0, 3)) + (age == 0)
        scrapes.append((age, restarted, draw(st.integers(0, len(missing) - 1))))
    return Life(path, missing, scrapes)


@given(lives())
@settings(max_examples=200, deadline=None)
def test_counters_grow_by_what_one_source_grows_and_go_back_only_with_the_engine(life: Life) -> None:
    """Each family has counted a little more than in the text, so that no two sources of a metric are alike."""
    text = read(life.path)
    known = sorted(set(text.families))
    more = np.array([1 + known.index(f) / 128 for f in text.families])
    values = np.where(text.cumulative, text.values * more, text.values)
    shapes = [part(text, text.chosen(bits)) for bits in life.missing]
    shares = [counters(Target(text.identity).scrape(shape, values[kept])) for shape, kept in shapes]
    target, before = Target(text.identity), -1
    last: dict[tuple[str, Labels], tuple[int, float]] = {}
    for age, restarted, now in life.scrapes:
        (shape, kept), share = shapes[now], shares[now]
        told = counters(target.scrape(shape, np.where(text.cumulative, values * age, values)[kept]))
        assert told.keys() == share.keys()
        if restarted:
            last.clear()
        for key, value in told.items():
            since, former = last.get(key, (0, 0.0))
            growth, whole = value - former, share[key] * (age - since)
            assert growth >= 0, key
            # Another source may have taken over, which goes on from here, or from somewhere in between where it was
            # there for a while.
            same = key not in last or shares[before].get(key) == share[key]
            assert np.isclose(growth, whole) or (not same and growth < whole), key
            last[key] = (age, value)
        before = now


REPLICAS = ("tp_rank", "moe_ep_rank", "pid", "rank")


@given(st.sampled_from(WRITTEN + RECORDED), st.randoms(use_true_random=False), st.sampled_from([0.0, 0.5, 1.0]))
@settings(max_examples=80, deadline=None)
def test_ranks_that_say_the_same_may_come_in_any_order_and_number(path: Path, random: object, lag: float) -> None:
    """One more rank that tells as much or less (it reports now and then only), and all lines shuffled."""
    text = read(path)
    plain = Target(text.identity).scrape(text.shape, text.values)
    lines = list(zip(text.shape.names, text.shape.labels, text.values.tolist(), strict=True))
    for name, labels, value in lines.copy():
        own = dict(labels)
        another = {label: f"{own[label]}9" for label in REPLICAS if label in own}
        if another:
            lines.append((name, labels_of(own | another), value * lag))
    random.shuffle(lines)  # type: ignore[attr-defined]
    shape = Shape(tuple(n for n, _, _ in lines), tuple(ls for _, ls, _ in lines), text.shape.types)
    more = Target(text.identity).scrape(shape, np.array([v for _, _, v in lines]))
    assert more.keys() == plain.keys()
    for key, value in plain.items():
        if key[0] != PROGRESS_TOTAL:
            assert np.isclose(more[key], value, equal_nan=True), key
