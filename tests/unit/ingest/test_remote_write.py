"""Requests as senders write them, and as nobody should. What is right: Prometheus's receiver and the specifications."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from support.remote_write_messages import ONE, TWO, request, request_2

from loms.core.errors import PayloadError
from loms.core.model import STALE_NAN, STALE_NAN_BITS, Metadata, Series
from loms.ingest.remote_write import Decoder, Received
from loms.ingest.remote_write_series import Lately, Policy

T = 1_764_456_000_123
LABELS = {"__name__": "up", "instance": "h:1", "job": "j"}
UP = Series.of("up", (("instance", "h:1"), ("job", "j")))


def rows(received: Received) -> list[tuple[str, int, float]]:
    names = {one.id: one.name + str(dict(one.labels)) for one in received.batch.series}
    batch = received.batch
    return [
        (names[i], t, v)
        for i, t, v in zip(batch.series_ids.tolist(), batch.timestamps_ms.tolist(), batch.values.tolist(), strict=True)
    ]


VERSIONS = pytest.mark.parametrize(("write", "version"), [(request, 1), (request_2, 2)])


def decode(decoder: Decoder, message: bytes, version: int) -> Received:
    return decoder.decode(message) if version == 1 else decoder.decode_2(message)


@VERSIONS
def test_samples_keep_time_and_bits_also_when_the_series_is_known(write: object, version: int) -> None:
    decoder = Decoder()
    special = [0.0, -0.0, 1.5, float("inf"), float("-inf"), 5e-324, 1e300]
    for _ in range(2):  # the second time by the quick way
        message = write(*((LABELS | {"n": str(i)}, [(T + i, v)]) for i, v in enumerate(special)))  # type: ignore[operator]
        received = decode(decoder, message, version)
        by_time = dict(zip(received.batch.timestamps_ms.tolist(), received.batch.values.tolist(), strict=True))
        assert [struct.pack("d", by_time[T + i]) for i in range(len(special))] == [struct.pack("d", v) for v in special]
        assert not received.refused
        assert len(received.batch.series) == len(special)


@VERSIONS
def test_a_staleness_marker_keeps_its_bits(write: object, version: int) -> None:
    decoder = Decoder()
    for _ in range(2):
        received = decode(decoder, write((LABELS, [(T, STALE_NAN)])), version)  # type: ignore[operator]
        assert received.batch.values.view(np.uint64).tolist() == [STALE_NAN_BITS]
        assert received.batch.series == (UP,)


@VERSIONS
def test_several_samples_of_a_series(write: object, version: int) -> None:
    decoder = Decoder()
    some = [(T, 1.0), (T + 1, 0.0), (-5, 2.0), (0, 3.0), (2**50, 4.0)]
    for _ in range(2):
        received = decode(decoder, write((LABELS, some)), version)  # type: ignore[operator]
        assert [(t, v) for _, t, v in rows(received)] == some
        assert received.batch.series == (UP,)


def test_a_tail_that_only_looks_like_a_sample_is_read_for_what_it_is() -> None:
    """18 bytes behind known labels: another label and a sample without a value."""
    decoder = Decoder()
    decoder.decode(request(({"__name__": "m"}, [(T, 1.0)])))
    more = request(({"__name__": "m", "ab": "c"}, [(T, 0.0)]))
    assert len(more) == len(request(({"__name__": "m"}, [(T, 1.0)])))
    assert rows(decoder.decode(more)) == [("m{'ab': 'c'}", T, 0.0)]


def test_a_samples_parts_in_another_order_or_number_are_read_for_what_they_are() -> None:
    """18 bytes that begin like the usual sample's field and are none; the series is known by then."""
    decoder = Decoder()
    usual = request(({"__name__": "m"}, [(T, 1.0)]))
    decoder.decode(usual)
    time_bytes = usual[-6:]
    value = bytes([1, 0x10, 0x80, 0x81, 0x82, 0x83, 0x84, 0x3F])
    swapped = usual[:-18] + b"\x12\x10\x10" + time_bytes + b"\x09" + value
    assert rows(decoder.decode(swapped)) == [("m{}", T, struct.unpack("<d", value)[0])]
    short_time = usual[:-7] + b"\x10\x80\x80\x80\x40\x18\x05"
    assert rows(decoder.decode(short_time)) == [("m{}", 2**27, 1.0)]
    for length in (0x0E, 0x11):
        with pytest.raises(PayloadError):
            decoder.decode(usual[:-17] + bytes([length]) + usual[-16:])


@pytest.mark.parametrize("refs", [b"\x01\x82", b"\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"])
def test_references_that_do_not_end_or_are_no_number_of_a_symbol(refs: bytes) -> None:
    usual = request_2(({"__name__": "m"}, [(T, 1.0)]))
    at = usual.index(b"\x0a\x02\x01\x02\x12")
    head = b"\x0a" + bytes([len(refs)]) + refs
    changed = usual[: at - 1] + bytes([len(head) + 18]) + head + usual[at + 4 :]
    with pytest.raises(PayloadError, match=r"cut off|beyond the 3"):
        Decoder().decode_2(changed)


def test_labels_that_come_unsorted_are_sorted_and_empty_ones_are_none() -> None:
    received = Decoder().decode(request(({"job": "j", "__name__": "up", "instance": "h:1", "e": ""}, [(T, 1.0)])))
    assert received.batch.series == (UP,)


@VERSIONS
@pytest.mark.parametrize(
    ("labels", "reason", "says"),
    [
        ({"job": "j"}, "invalid_labels", "no __name__"),
        ({"__name__": "", "job": "j"}, "invalid_labels", "no __name__"),
        ({"__name__": "m", "": "x"}, "invalid_labels", "no name"),
        ({"__name__": "m", "a": "x" * 21}, "label_too_long", "21 characters"),
        ({"__name__": "m" * 21}, "label_too_long", "21 characters"),
        ({"__name__": "m", "n" * 21: "x"}, "label_too_long", "21 characters"),
        ({"__name__": "m", **{f"l{i}": "x" for i in range(5)}}, "too_many_labels", "5 labels; 4 are"),
    ],
)
def test_a_series_that_cannot_be_taken_does_not_hinder_the_others(
    write: object, version: int, labels: dict[str, str], reason: str, says: str
) -> None:
    decoder = Decoder(Policy(labels=4, label_value_length=20))
    message = write((labels, [(T, 1.0), (T + 1, 2.0)]), (LABELS, [(T, 3.0)]))  # type: ignore[operator]
    received = decode(decoder, message, version)
    assert [v for _, _, v in rows(received)] == [3.0]
    assert dict(received.refused) == {reason: 2}
    assert says in received.remark


def test_a_label_that_stands_twice_is_refused() -> None:
    message = ONE["WriteRequest"]()
    series = message.timeseries.add()
    for name, value in (("__name__", "m"), ("a", "1"), ("a", "2")):
        series.labels.add(name=name, value=value)
    series.samples.add(value=1, timestamp=T)
    received = Decoder().decode(message.SerializeToString())
    assert dict(received.refused) == {"invalid_labels": 1}
    assert "'a' stands twice" in received.remark


@pytest.mark.parametrize("version", [1, 2])
def test_text_that_is_not_utf8_is_refused(version: int) -> None:
    write = request if version == 1 else request_2
    message = write(({"__name__": "m", "a": "xyz"}, [(T, 1.0)]), (LABELS, [(T, 1.0)])).replace(b"xyz", b"x\xff\xfe")
    received = decode(Decoder(), message, version)
    assert dict(received.refused) == {"invalid_labels": 1}
    assert len(received.batch) == 1


def test_histograms_and_exemplars_are_counted_and_samples_beside_them_kept() -> None:
    for messages, refs in ((ONE, False), (TWO, True)):
        message = messages["Request" if refs else "WriteRequest"]()
        series = message.timeseries.add()
        if refs:
            message.symbols.extend(["", "__name__", "m"])
            series.labels_refs.extend([1, 2])
        else:
            series.labels.add(name="__name__", value="m")
        series.samples.add(value=1, timestamp=T)
        series.histograms.add(sum=3, timestamp=T)
        series.exemplars.add(value=3, timestamp=T)
        decoder = Decoder()
        for _ in range(2):
            received = decode(decoder, message.SerializeToString(), 2 if refs else 1)
            assert rows(received) == [("m{}", T, 1.0)]
            assert (dict(received.refused), received.exemplars) == ({"native_histogram": 1}, 1)
            assert "native histograms are not supported" in received.remark


def test_metadata_of_version_1() -> None:
    message = ONE["WriteRequest"]()
    message.metadata.add(type=1, metric_family_name="requests_total", help="How many.", unit="")
    message.metadata.add(type=3, metric_family_name="seconds", help="How long.", unit="seconds")
    message.metadata.add(type=99, metric_family_name="odd")
    assert Decoder().decode(message.SerializeToString()).metadata == (
        Metadata("requests_total", "counter", "How many.", ""),
        Metadata("seconds", "histogram", "How long.", "seconds"),
        Metadata("odd", "unknown", "", ""),
    )


def test_metadata_of_version_2_is_the_familys() -> None:
    message = TWO["Request"](symbols=["", "__name__", "seconds_bucket", "le", "1", "How long.", "s", "2"])
    for bound in (4, 7):
        series = message.timeseries.add(labels_refs=[1, 2, 3, bound])
        series.samples.add(value=1, timestamp=T)
        series.metadata.type, series.metadata.help_ref, series.metadata.unit_ref = 3, 5, 6
    received = Decoder().decode_2(message.SerializeToString())
    assert received.metadata == (Metadata("seconds", "histogram", "How long.", "s"),)
    assert len(received.batch) == 2


@pytest.mark.parametrize("refs", [[1, 9], [1, 2, 1, 2**31]])
def test_a_symbol_that_is_not_there_breaks_the_request(refs: list[int]) -> None:
    message = TWO["Request"](symbols=["", "__name__", "m"])
    message.timeseries.add(labels_refs=refs).samples.add(value=1, timestamp=T)
    with pytest.raises(PayloadError, match="symbol beyond the 3") as refused:
        Decoder().decode_2(message.SerializeToString())
    assert refused.value.status == 400


def test_an_odd_number_of_symbols_is_no_label_set() -> None:
    message = TWO["Request"](symbols=["", "__name__", "m"])
    message.timeseries.add(labels_refs=[1, 2, 1]).samples.add(value=1, timestamp=T)
    assert dict(Decoder().decode_2(message.SerializeToString()).refused) == {"invalid_labels": 1}


@pytest.mark.parametrize(
    "message",
    [
        b"\x0a\x00" * 2_100_000,
        b"\x0a\x84\xad\xe2\x04" + b"\x12\x00" * 5_000_002,
        b"\x0a\x84\xad\xe2\x04" + b"\x0a\x00" * 5_000_002,
    ],
    ids=["series", "samples", "labels"],
)
def test_millions_of_tiny_fields_are_too_much(message: bytes) -> None:
    with pytest.raises(PayloadError) as refused:
        Decoder().decode(message)
    assert refused.value.status == 413


def test_a_message_of_the_other_version_is_not_taken_for_empty() -> None:
    with pytest.raises(PayloadError, match=r"of remote write 1\.0"):
        Decoder().decode_2(request((LABELS, [(T, 1.0)])))
    with pytest.raises(PayloadError, match=r"of remote write 2\.0"):
        Decoder().decode(request_2((LABELS, [(T, 1.0)])))


def test_what_is_remembered_is_bounded_in_number_and_bytes() -> None:
    lately: Lately[str] = Lately(most=10, most_bytes=1000)
    for i in range(100):
        lately.put(str(i), UP, 10)
    assert len(lately.young) <= 10
    assert lately.get("0", 10) is None
    assert lately.get("99", 10) is UP
    for i in range(100):
        lately.put(f"b{i}", UP, 400)
    assert len(lately.young) <= 2


def test_a_series_asked_for_outlives_a_generation() -> None:
    lately: Lately[str] = Lately(most=3)
    lately.put("kept", UP, 1)
    for i in range(20):
        assert lately.get("kept", 1) is UP
        lately.put(str(i), UP, 1)
