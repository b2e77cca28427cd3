from __future__ import annotations

import os
from pathlib import Path

import pytest

from loms.core.errors import StoreBusyError, StoreError
from loms.store.lock import DirectoryLock


def test_a_second_holder_is_refused_and_told_whom_to_stop(tmp_path: Path) -> None:
    first = DirectoryLock(tmp_path)
    with pytest.raises(StoreBusyError) as refused:
        DirectoryLock(tmp_path)
    assert refused.value.message == f"{tmp_path}: the data directory is in use by process {os.getpid()}"
    assert "store.path" in refused.value.hint
    first.close()


def test_a_closed_lock_frees_the_directory(tmp_path: Path) -> None:
    first = DirectoryLock(tmp_path)
    first.close()
    first.close()
    DirectoryLock(tmp_path).close()


def test_a_stale_file_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("999999999999\nand more text than a process id\n")
    lock = DirectoryLock(tmp_path)
    assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
    lock.close()


def test_a_missing_directory_is_made_for_this_user_alone(tmp_path: Path) -> None:
    DirectoryLock(tmp_path / "a" / "b").close()
    assert (tmp_path / "a" / "b").stat().st_mode & 0o077 == 0


def test_a_path_that_is_no_directory_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"file: cannot be used as the data directory: .*") as refused:
        DirectoryLock(tmp_path / "file")
    assert refused.value.hint
