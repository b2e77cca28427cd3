from __future__ import annotations

import json
import logging

import pytest

from loms.core import log, selfmetrics
from loms.core.guard import failures, guard


def test_a_guarded_failure_is_counted_logged_and_exported(caplog: pytest.LogCaptureFixture) -> None:
    before = failures["unit-test"]
    for _ in range(3):
        with guard("unit-test"):
            raise ZeroDivisionError("x")
    assert failures["unit-test"] == before + 3
    assert len([r for r in caplog.records if r.name == "loms.guard"]) == 2  # the first and the second, not the third
    assert f'loms_internal_errors_total{{where="unit-test"}} {before + 3}.0' in selfmetrics.render().decode()


def test_a_guard_lets_the_program_be_stopped() -> None:
    with pytest.raises(KeyboardInterrupt), guard("unit-test"):
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    "secret",
    [
        "Authorization: Bearer s3cr3t",
        "{'Authorization': 'Bearer s3cr3t'}",
        "http://user:s3cr3t@host:1/metrics",
        "api_key=s3cr3t&x=1",
        'password: "s3cr3t"',
        "token=s3cr3t",
    ],
)
def test_secrets_are_blanked(secret: str) -> None:
    assert "s3cr3t" not in log.redact(secret)
    assert "***" in log.redact(secret)


@pytest.mark.parametrize("text", ["LOMS is up: http://127.0.0.1:8090 (data in /x)", "took 3 s: a basic, honest line"])
def test_what_is_no_secret_stays(text: str) -> None:
    assert log.redact(text) == text


def test_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    handlers, level = logging.getLogger().handlers[:], logging.getLogger().level
    try:
        log.configure("info", as_json=True)
        logging.getLogger("loms.x").info("token=%s", "abc")
        line = json.loads(capsys.readouterr().err)
    finally:
        logging.getLogger().handlers[:] = handlers
        logging.getLogger().setLevel(level)
    assert line["level"] == "info"
    assert line["message"] == "token=***"
