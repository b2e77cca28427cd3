"""One process per data directory, by a lock that the kernel lets go when its holder dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from loms.core.errors import StoreBusyError, StoreError


class DirectoryLock:
    """Holds ``<directory>/lock`` from construction to `close`; the file names the holder's process id.

    Raises `StoreBusyError` when another process holds it and `StoreError` when the directory cannot be used.
    """

    def __init__(self, directory: Path) -> None:
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StoreError(
                f"{directory}: cannot be used as the data directory: {error.strerror}",
                hint="set store.path to a directory that this user may write",
            ) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._file, 32).decode(errors="replace").strip()
            os.close(self._file)
            raise StoreBusyError(
                f"{directory}: the data directory is in use by process {holder or '(unknown)'}",
                hint="stop that process, or set store.path to another directory",
            ) from None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Let another process have the directory. Calling again does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
