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

from loms.core.model import Exposition, Ids, Labels, Series, Shape, labels_of
from loms.engines.engine import PROGRESS, Identity, engines, recognise
from loms.engines.translate import Translator
from loms.engines.watch import PROGRESS_TOTAL
from loms.ingest.exposition import ExpositionReader

DATA = Path(__file__).parents[1] / "data"
TARGET = labels_of({"job": "engines", "instance": "10.0.0.7:8000"})
MODEL = "meta-llama/Llama-3.1-8B-Instruct"
TELLERS = ("vllm", "sglang", "tgi", "tensorrt-llm")
"""Engines whose written expositions tell the whole story at one hop."""
EVERY = sorted(DATA.glob("*/*.txt"))
STORIES = [path for path in EVERY if path.parent.name == "written" and path.stem.rpartition("-")[0].startswith(TELLERS)]
GROWING_GAUGES = ("sglang:total_retracted_reqs", "nv_trt_llm_general_metrics")
"""Typed gauges that count."""

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
    core: frozenset[str]
    """Families that are always there: by one of them a restart is seen."""

    @property
    def droppable(self) -> list[str]:
        return sorted(set(self.families) - self.core)

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
    identity = Identity(version, MODEL)
    core = core_of(exposition.shape, families, identity)
    return Text(exposition.shape, exposition.values, families, np.array(cumulative), identity, core)


def core_of(shape: Shape, families: tuple[str, ...], identity: Identity) -> frozenset[str]:
    """What feeds the first of the counters that only a working engine moves."""
    translator = Translator(TARGET)
    translator.identified(identity)
    combinations = translator.plan(shape, raw_ids(shape)).meaning.combinations
    for metric in PROGRESS:
        found = {families[p] for c in combinations if c.metric == metric for p, _ in c.terms}
        if found:
            return frozenset(found)
    return frozenset()


def known(path: Path) -> bool:
    shape = ExpositionReader().read(path.read_bytes(), "text/plain; version=0.0.4").shape
    return recognise(frozenset(shape.types) | frozenset(shape.names)) is not None


def family(name: str, types: Iterable[str]) -> str:
    bases = (name.removesuffix(suffix) for suffix in ("", "_bucket", "_sum", "_count"))
    return next((base for base in bases if base in types), name)


class Target:
    """A translator that is shown one exposition after the other."""

    def __init__(self, identity: Identity) -> None:
        self.translator = Translator(TARGET)
        self.translator.identified(identity)

    def engine(self, text: Text) -> str:
        """The one whose exposition this is."""
        return self.translator.plan(text.shape, raw_ids(text.shape)).engine

    def scrape(self, shape: Shape, values: np.ndarray) -> Values:
        """Canonical series and their values."""
        ids = raw_ids(shape)
        plan = self.translator.plan(shape, ids)
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
    return Shape(names, labels, {f: t for f, t in text.shape.types.items() if f not in dropped}), np.array(kept, int)


def counters(values: Values) -> Values:
    """The cumulative ones; LOMS's own progress adds up what is told several times."""
    ends = ("_total", "_count", "_sum", "_bucket")
    return {key: value for key, value in values.items() if key[0].endswith(ends) and key[0] != PROGRESS_TOTAL}


KNOWN = [path for path in EVERY if known(path)]
"""All expositions of all registered engines, recorded or written."""


def masks(text: Text) -> st.SearchStrategy[int]:
    """Any subset of the families that may be dropped."""
    return st.integers(0, 2 ** len(text.droppable) - 1)


@given(st.data(), st.sampled_from(STORIES))
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
    core = [f in text.core for f in text.families]
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
    path = draw(st.sampled_from(KNOWN))
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
            # Another source may have taken over. What has grown since is then that of the one or of the other, or less
            # where neither was to be seen all the while.
            same = key not in last or shares[before].get(key) == share[key]
            most = max(other.get(key, 0.0) for other in shares) * (age - since)
            assert np.isclose(growth, whole) or (not same and growth < most * (1 + 1e-9)), key
            last[key] = (age, value)
        before = now


def test_every_engine_that_has_an_exposition_is_among_them() -> None:
    shown = {Target(read(path).identity).engine(read(path)) for path in KNOWN}
    assert shown == {name for name, engine in engines.load().items() if not engine.declared}


OUTPUT = "llm_engine_tokens_output_total"
USED = {"llm.engine.tokens.output": 1.0, "llm.engine.tokens.input": 2.0, "llm.engine.requests.finished": 1.0}
"""What one probe adds."""


class Children:
    """SGLang's counters by a label over which they are summed: children that come, go, come back, and are probed."""

    def __init__(self) -> None:
        self.target = Target(Identity("0.5.23", MODEL))
        self.requests: dict[str, int] = {}
        """Child → requests that it has counted; each has seven tokens."""
        self.probes: dict[str, int] = {}
        self.hidden: set[str] = set()
        self.seen: dict[str, int] = {}
        """Child → tokens when it was seen last."""
        self.value = 0.0

    def tokens(self, child: str) -> int:
        return 7 * self.requests.get(child, 0) + self.probes.get(child, 0)

    def exposition(self) -> Exposition:
        children = sorted((self.requests.keys() | self.probes.keys()) - self.hidden)
        lines = ["sglang:num_running_reqs 0", "sglang:num_queue_reqs 0"]
        for child in children:
            count = self.requests.get(child, 0) + self.probes.get(child, 0)
            labels = f'{{is_streaming="{child}",model_name="m"}}'
            prompts = 5 * self.requests.get(child, 0) + 2 * self.probes.get(child, 0)
            lines += [
                f"sglang:generation_tokens_total{labels} {self.tokens(child)}",
                f"sglang:prompt_tokens_total{labels} {prompts}",
                f"sglang:num_requests_total{labels} {count}",
            ]
        self.seen |= {child: self.tokens(child) for child in children}
        types = "".join(f"# TYPE sglang:{name}_total counter\n" for name in ("generation_tokens", "prompt_tokens"))
        return ExpositionReader().read((types + "\n".join(lines) + "\n").encode(), "text/plain")

    def scrape(self) -> Exposition:
        exposition = self.exposition()
        told = self.target.scrape(exposition.shape, exposition.values)
        values = [value for (name, _), value in told.items() if name == OUTPUT]
        if values and not np.isnan(values[0]):
            assert values[0] >= self.value, "it fell"
            self.value = values[0]
        return exposition

    def probe(self, child: str, users: int) -> None:
        before = self.scrape()
        translator = self.target.translator
        translator.hold(before)
        self.hidden.discard(child)
        self.probes[child] = self.probes.get(child, 0) + 1
        self.requests["users"] = self.requests.get("users", 0) + users
        translator.settle(self.scrape(), USED, "length", last=True)
        self.scrape()


CHILDREN = st.sampled_from(["true", "false", "third", "users"])
SHY = st.sampled_from(["true", "false", "third"])
"""One stays: were all of them exchanged at once, it would be another source."""
ACTS = st.one_of(
    st.tuples(st.just("serve"), CHILDREN, st.integers(1, 5)),
    st.tuples(st.just("hide"), SHY, st.just(0)),
    st.tuples(st.just("show"), SHY, st.just(0)),
    st.tuples(st.just("probe"), CHILDREN, st.integers(0, 2)),
)


@given(st.lists(ACTS, max_size=12))
@settings(max_examples=300, deadline=None)
def test_labels_may_come_and_go_and_probes_in_between(acts: list[tuple[str, str, int]]) -> None:
    """The sum is what every child had counted when it was seen last, without the probes."""
    children = Children()
    children.requests["users"] = 3
    children.scrape()
    for act, child, count in acts:
        if act == "serve":
            children.requests[child] = children.requests.get(child, 0) + count
        elif act == "probe":
            children.probe(child, count)
        else:
            (children.hidden.add if act == "hide" else children.hidden.discard)(child)
        children.scrape()
    assert children.value == sum(children.seen.values()) - sum(children.probes.values())


REPLICAS = ("tp_rank", "moe_ep_rank", "pid", "rank")


@given(st.sampled_from(KNOWN), st.randoms(use_true_random=False), st.sampled_from([0.0, 0.5, 1.0]))
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
