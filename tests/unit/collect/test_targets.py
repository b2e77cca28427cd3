from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from loms.collect.targets import Address, Auth, Target
from loms.core.errors import TargetError

TARGET = Target(job="vllm", instance="h:8000", url="http://h:8000/metrics", interval_seconds=5)


@pytest.mark.parametrize(
    ("url", "secure", "host", "port", "authority", "path"),
    [
        ("http://h", False, "h", 80, "h", "/"),
        ("https://h/m?x=1&y=2", True, "h", 443, "h", "/m?x=1&y=2"),
        ("http://[::1]:8000/metrics", False, "::1", 8000, "[::1]:8000", "/metrics"),
    ],
)
def test_address(url: str, secure: bool, host: str, port: int, authority: str, path: str) -> None:
    address = Address.of(url)
    assert (address.secure, address.host, address.port) == (secure, host, port)
    assert (address.authority, address.path) == (authority, path)


def test_credentials_of_a_url_are_not_shown() -> None:
    address = Address.of("http://me:s%40cret@h:1/m")
    assert (address.username, address.password) == ("me", "s@cret")
    assert address.shown == "http://h:1/m"
    assert "cret" not in repr(address)


@pytest.mark.parametrize("url", ["", "h:8000", "ftp://h/", "http://", "http://h:99999/", "http://h/a b", "http://[::1"])
def test_what_is_no_http_url(url: str) -> None:
    with pytest.raises(TargetError, match="is not an http or https URL"):
        Address.of(url)


def test_secrets_are_not_printed() -> None:
    shown = repr(replace(TARGET, auth=Auth(password="hunter2", bearer_token="t0ken")))
    assert "hunter2" not in shown
    assert "t0ken" not in shown


def test_who_found_a_target_does_not_make_it_another() -> None:
    assert replace(TARGET, discovered_by="ports") == TARGET
    assert hash(replace(TARGET, discovered_by="ports")) == hash(TARGET)
    assert replace(TARGET, interval_seconds=1) != TARGET


def test_job_and_instance_win_over_configured_labels() -> None:
    target = replace(TARGET, labels=(("deployment_zone", "a"), ("job", "x")))
    assert target.identity == (("deployment_zone", "a"), ("instance", "h:8000"), ("job", "vllm"))


def test_offsets_are_stable_and_spread() -> None:
    targets = [replace(TARGET, instance=f"h{i}:8000", url=f"http://h{i}:8000/metrics") for i in range(500)]
    offsets = [target.offset_seconds for target in targets]
    assert offsets == [replace(target).offset_seconds for target in targets]
    assert all(0 <= offset < 5 for offset in offsets)
    by_second = Counter(int(offset) for offset in offsets)
    assert all(60 <= by_second[second] <= 140 for second in range(5)), "about a hundred in each second"
