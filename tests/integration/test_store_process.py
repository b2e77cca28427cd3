"""The store in real processes: refused twice, killed at full speed, told to end.

Run as a program, this file is the victim: ``python test_store_process.py DIRECTORY ROUND FLUSH_SECONDS`` writes samples
(series id: the round; value: 0, 1, 2, …) as fast as the store takes them and reports on stdout ``sent N MONOTONIC`` for
each batch and ``stored N`` once the store has acknowledged the first N samples.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from loms.core.clock import SystemClock
from loms.core.errors import StoreBusyError
from loms.core.model import SampleBatch, Series
from loms.store.database import Database
from loms.store.state import State
from loms.store.writer import Writer

pytestmark = pytest.mark.integration

KILLS = 20
RETENTION = 30 * 86_400.0
DEADLINE = 60.0
BATCH = 1_000
AHEAD = 300_000
"""Samples that the victim lets wait, so that nothing is dropped."""


class Acknowledging:
    """The database, reporting each acknowledged insert of samples."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.retention_seconds = database.retention_seconds
        self.stored = 0

    def insert_arrow(self, table: str, rows: pa.Table) -> None:
        self._database.insert_arrow(table, rows)
        if table == "samples":
            self.stored += len(rows)
            report(f"stored {self.stored}")


def report(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def victim(directory: str, number: str, flush_seconds: str) -> None:
    clock = SystemClock()
    database = Database.open(Path(directory), RETENTION, clock)
    tables = Acknowledging(database)
    writer = Writer(tables, clock, flush_seconds=float(flush_seconds), queue_rows=2 * AHEAD, flush_rows=AHEAD)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    series = Series(int(number), "written", (("round", number),))
    sent = 0
    while not ended.is_set():
        ids, now_ms = np.full(BATCH, series.id, np.uint64), clock.now_ms()
        writer(SampleBatch(ids, np.full(BATCH, now_ms), np.arange(sent, sent + BATCH, dtype=float), (series,)))
        sent += BATCH
        report(f"sent {sent} {clock.monotonic()}")
        while sent - tables.stored >= AHEAD and not ended.is_set():
            ended.wait(0.005)
    writer.close()
    database.close()
    report(f"ended {sent}")


class Victim:
    """A running victim, and what it has said."""

    def __init__(self, directory: Path, number: int, flush_seconds: float) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(directory), str(number), str(flush_seconds)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(directory.parent)},
        )
        self.said: list[list[str]] = []
        self._heard = threading.Condition()
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._heard:
                self.said.append(line.split())
                self._heard.notify_all()
        with self._heard:
            self._heard.notify_all()

    def wait_for(self, word: str) -> None:
        with self._heard:
            assert self._heard.wait_for(lambda: self.process.poll() is not None or self.last(word) > 0, DEADLINE)
        assert self.last(word) > 0, self.said[-3:]

    def last(self, word: str) -> int:
        return max((int(words[1]) for words in self.said if words[0] == word and len(words) > 1), default=0)

    def end(self, signal_number: int) -> int:
        self.process.send_signal(signal_number)
        code = self.process.wait(DEADLINE)
        self._listener.join(DEADLINE)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def stored(database: Database, number: int) -> tuple[int, int]:
    """Rows of a round, and how many of the values 0, 1, 2, … stand there without a gap and once each."""
    columns = database.query_columns(
        "SELECT count() AS n, uniqExact(value) AS d, max(value) AS m FROM samples WHERE series_id = {r:UInt64}",
        {"r": number},
    )
    rows, distinct, newest = (columns[name][0].as_py() for name in ("n", "d", "m"))
    return rows, distinct if rows == distinct == newest + 1 else -1


def test_killed_at_full_speed_it_keeps_every_acknowledged_row_and_opens_again(tmp_path: Path) -> None:
    directory, chance = tmp_path / "store", random.Random(20)
    lost_ages = []
    for number in range(1, KILLS + 1):
        victim_process = Victim(directory, number, flush_seconds=chance.choice((0.01, 0.01, 0.05, 0.05, 1.0)))
        victim_process.wait_for("stored")
        time.sleep(chance.uniform(0.0, 0.5))  # the moment of the kill is chance, not a result to wait for
        killed_at = time.monotonic()
        assert victim_process.end(signal.SIGKILL) == -signal.SIGKILL
        with Database.open(directory, RETENTION, SystemClock()) as database:
            rows, whole = stored(database, number)
            named = database.query_columns("SELECT count() AS n FROM series FINAL")["n"][0].as_py()
        assert whole == rows >= victim_process.last("stored") > 0
        assert named == number
        lost = [
            float(words[2])
            for words in victim_process.said
            if words[0] == "sent" and len(words) == 3 and int(words[1]) > rows
        ]
        lost_ages.append(killed_at - min(lost, default=killed_at))
    print(f"oldest lost batch before the kill, by round (s): {[round(age, 2) for age in lost_ages]}")
    assert max(lost_ages) < 1.0 + DEADLINE / 6, "a flush interval and the insert under way, on the slowest machine"
    with Database.open(directory, RETENTION, SystemClock()) as database:
        assert all(stored(database, number)[1] > 0 for number in range(1, KILLS + 1))
        database.command("OPTIMIZE TABLE samples FINAL")
        broken = database.query_columns("SELECT count() AS n FROM system.detached_parts")["n"][0].as_py()
    assert broken == 0


def test_told_to_end_it_writes_what_waits(tmp_path: Path) -> None:
    victim_process = Victim(tmp_path / "store", 1, flush_seconds=3600)
    victim_process.wait_for("sent")
    assert victim_process.end(signal.SIGTERM) == 0
    ended = victim_process.last("ended")
    assert ended >= victim_process.last("sent") > 0
    with Database.open(tmp_path / "store", RETENTION, SystemClock()) as database:
        assert stored(database, 1) == (ended, ended)


def test_an_incident_and_its_notification_survive_a_kill_right_after_they_were_put(tmp_path: Path) -> None:
    for n in range(5):
        program = (
            "import os, signal, sys; from pathlib import Path\n"
            "from loms.core.clock import SystemClock; from loms.core.model import Alert, Incident\n"
            "from loms.store.database import Database; from loms.store.state import Notification, State\n"
            "path, n, clock = Path(sys.argv[1]), int(sys.argv[2]), SystemClock()\n"
            "state = State(Database.open(path, 1e9, clock), clock)\n"
            "alert = Alert('r', (('n', str(n)),), (), 'firing', 1.0, n)\n"
            "state.put_alerts([alert]); state.put_notifications([Notification(str(n), 'text', 0, n)])\n"
            "state.put_incidents([Incident(str(n), (), 't', 'critical', n, n, None, (alert,))])\n"
            "os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        code = subprocess.run([sys.executable, "-c", program, str(tmp_path / "store"), str(n)], check=False).returncode
        assert code == -signal.SIGKILL
    with Database.open(tmp_path / "store", RETENTION, SystemClock()) as database:
        state = State(database, SystemClock())
        assert [alert.active_at_ms for alert in state.open_alerts()] == [0, 1, 2, 3, 4]
        assert [incident.id for incident in state.incidents("open")] == ["4", "3", "2", "1", "0"]
        assert [one.key for one in state.pending_notifications()] == ["0", "1", "2", "3", "4"]


def test_a_second_process_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    first = Victim(tmp_path / "store", 1, flush_seconds=0.05)
    first.wait_for("stored")
    with pytest.raises(StoreBusyError) as refused:
        Database.open(tmp_path / "store", RETENTION, SystemClock())
    assert f"in use by process {first.process.pid}" in refused.value.message
    assert first.end(signal.SIGTERM) == 0
    with Database.open(tmp_path / "store", RETENTION, SystemClock()) as database:
        assert stored(database, 1) == (first.last("ended"),) * 2
        second = subprocess.run(
            [sys.executable, __file__, str(tmp_path / "store"), "2", "1"], capture_output=True, text=True, check=False
        )
    assert second.returncode != 0
    assert f"in use by process {os.getpid()}" in second.stderr


if __name__ == "__main__":
    victim(*sys.argv[1:])
