from __future__ import annotations

from pathlib import Path

from loms.core.clock import ManualClock
from loms.store.database import Database
from loms.store.target_notes import FORGET_AFTER_MS, TargetNotes


def test_the_newest_text_of_each_kind_and_target_is_there_after_a_restart(tmp_path: Path) -> None:
    clock = ManualClock(1_800_000_000_000)
    with Database.open(tmp_path, 1e9, clock) as database:
        folded, other = TargetNotes(database, clock, "folded"), TargetNotes(database, clock, "other")
        assert folded.load() == {}
        folded.save("j", "a:1", "first")
        folded.save("j", "b:1", "é")
        other.save("j", "a:1", "another kind")
        clock.advance(1)
        folded.save("j", "a:1", "second")
    with Database.open(tmp_path, 1e9, clock) as database:
        assert TargetNotes(database, clock, "folded").load() == {("j", "a:1"): "second", ("j", "b:1"): "é"}


def test_a_target_that_nothing_was_written_about_for_long_is_forgotten(tmp_path: Path) -> None:
    clock = ManualClock(1_800_000_000_000)
    with Database.open(tmp_path, 1e9, clock) as database:
        notes = TargetNotes(database, clock, "folded")
        notes.save("j", "a:1", "old")
        clock.advance(FORGET_AFTER_MS / 2000)
        notes.save("j", "b:1", "new")
        clock.advance(FORGET_AFTER_MS / 2000 + 1)
        assert notes.load() == {("j", "b:1"): "new"}


def test_the_text_saved_last_counts_also_where_the_clock_was_set_back(tmp_path: Path) -> None:
    clock = ManualClock(1_800_000_000_000)
    with Database.open(tmp_path, 1e9, clock) as database:
        notes = TargetNotes(database, clock, "folded")
        notes.save("j", "a:1", "first")
        notes.save("j", "a:1", "second")
        assert notes.load() == {("j", "a:1"): "second"}
    clock = ManualClock(1_799_999_990_000)
    with Database.open(tmp_path, 1e9, clock) as database:
        notes = TargetNotes(database, clock, "folded")
        notes.load()
        notes.save("j", "a:1", "third")
        assert notes.load() == {("j", "a:1"): "third"}


def test_many_at_once(tmp_path: Path) -> None:
    clock = ManualClock(1_790_000_000_000)
    with Database.open(tmp_path, 1e9, clock) as database:
        notes = TargetNotes(database, clock, "contract")
        notes.save("engines", "a:8000", "old")
        notes.save_all({("engines", "a:8000"): "new", ("engines", "b:8000"): "other"})
        assert notes.load() == {("engines", "a:8000"): "new", ("engines", "b:8000"): "other"}
