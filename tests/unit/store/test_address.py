from __future__ import annotations

import pytest

from loms.core.errors import ConfigError
from loms.store.address import Address


@pytest.mark.parametrize(
    ("url", "hosts", "database", "user", "password", "secure"),
    [
        ("clickhouse://localhost", (("localhost", 8123),), "loms", "default", "", False),
        ("clickhouses://u:p@h/db", (("h", 8443),), "db", "u", "p", True),
        ("clickhouse://u@a:1,b,[::1]:9/", (("a", 1), ("b", 8123), ("::1", 9)), "loms", "u", "", False),
        ("clickhouse://me:p%40s%2Fs%3Aw%25@h:8123/d_1", (("h", 8123),), "d_1", "me", "p@s/s:w%", False),
    ],
)
def test_a_url_is_taken_apart(
    url: str, hosts: tuple[tuple[str, int], ...], database: str, user: str, password: str, secure: bool
) -> None:
    found = Address.parse(url)
    assert (found.hosts, found.database, found.user, found.secure) == (hosts, database, user, secure)
    assert found.password == password


@pytest.mark.parametrize(
    "url",
    [
        "http://secret@localhost:8123",
        "clickhouse://",
        "clickhouse://u:secret@h:port/db",
        "clickhouse://u:secret@h/db?secure=1",
        "clickhouse://u:secret@h/da ta",
        "clickhouse://u:secret@h,/db",
    ],
)
def test_another_form_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ConfigError, match=r"store\.url: not of the form") as refused:
        Address.parse(url)
    assert "secret" not in f"{refused.value.message}{refused.value.hint}"


def test_an_address_names_hosts_and_no_secret() -> None:
    address = Address.parse("clickhouses://me:secret@a,[::1]:9/db")
    assert str(address) == "clickhouses://a:8443,[::1]:9/db"
    assert "secret" not in repr(address)
