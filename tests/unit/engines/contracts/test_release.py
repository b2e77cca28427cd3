from __future__ import annotations

from itertools import pairwise

import pytest

from loms.engines.contracts.release import between, parse_release, previous_minor


@pytest.mark.parametrize(
    ("written", "same_as"),
    [
        ("v0.5.23", "0.5.23"),
        ("0.32.0+cpu", "0.32.0"),
        ("1.0", "1.0.0"),
        (" 2.73.0\n", "2.73"),
        ("b11434-5d2c8f1", "b11434"),
        ("0.5.6post2", "0.5.6.post2"),
        ("0.11.0-rc2", "0.11.0rc2"),
        ("0.9.2.dev3+g12ab34c.d20250701", "0.9.2.dev3"),
    ],
)
def test_spellings_of_the_same_version(written: str, same_as: str) -> None:
    assert parse_release(written) == parse_release(same_as) is not None


def test_versions_in_order_of_age() -> None:
    ordered = (
        "0.9 0.9.1 0.9.2.dev3 0.9.2a1 0.9.2b1 0.9.2rc1 0.9.2rc2 0.9.2 0.9.2.post1 0.9.3.dev0 0.9.10 0.10 1.0rc1 1.0"
    )
    releases = [parse_release(version) for version in ordered.split()]
    assert None not in releases
    assert all(older < newer for older, newer in pairwise(releases) if older and newer)


@pytest.mark.parametrize(
    "written",
    ["", "dev", "unknown", "main", "b0-unknown", "0.0.0", "0.1.dev14233+g5d2c8f1", "0.1.dev0", "g5d2c8f1"],
)
def test_texts_that_do_not_tell_how_old_a_version_is(written: str) -> None:
    assert parse_release(written) is None


def test_where_a_version_stands_among_others() -> None:
    known = tuple(release for release in map(parse_release, ("0.8.5", "0.9.0", "0.9.2")) if release)

    def stands(version: str) -> tuple[int | None, int | None]:
        release = parse_release(version)
        assert release is not None
        return between(release, known)

    assert stands("0.8.5") == (0, 0)
    assert stands("0.9.1") == (1, 2)
    assert stands("0.9.2.dev3") == (1, 2)
    assert stands("0.9.2.post1") == (2, None)
    assert stands("0.6") == (None, 0)


@pytest.mark.parametrize(
    ("version", "previous"), [("0.12.0", "0.11"), ("0.9.2.dev3", "0.8"), ("2.1", "2.0"), ("1.0.3", ""), ("main", "")]
)
def test_the_minor_release_before(version: str, previous: str) -> None:
    assert previous_minor(version) == previous
