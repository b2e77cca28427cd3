"""Numbered SQL files, applied once each and in order; a database that does not fit the code is refused."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from loms.core.errors import StoreError
from loms.store.engine import Command, Rows

_VERSIONS = """
CREATE TABLE IF NOT EXISTS schema_version (version UInt32, name String, checksum String, applied_at DateTime64(3))
ENGINE = MergeTree ORDER BY version SETTINGS fsync_after_insert = 1, fsync_part_directory = 1
"""


@dataclass(frozen=True, slots=True)
class Migration:
    """One schema file. A statement may be run twice (a crash between it and the record of its file)."""

    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()

    @property
    def statements(self) -> list[str]:
        """The file's statements; each ends with a semicolon at the end of a line."""
        code = re.sub(r"^\s*--.*\n?", "", self.sql, flags=re.MULTILINE)
        return [part.strip() for part in re.split(r";\s*$", code, flags=re.MULTILINE) if part.strip()]


def shipped() -> list[Migration]:
    """The schema files of this version of LOMS, in order."""
    entries = sorted(files("loms.store").joinpath("schema").iterdir(), key=lambda entry: entry.name)
    return [
        Migration(int(entry.name[:3]), entry.name, entry.read_text(encoding="utf-8"))
        for entry in entries
        if entry.name.endswith(".sql")
    ]


def migrate(
    where: str,
    command: Command,
    rows: Rows,
    migrations: Sequence[Migration],
    now_ms: int,
) -> None:
    """Bring the database to the newest of ``migrations``. ``where`` names it in errors.

    Nothing is run when nothing is to be done. Raises `StoreError` when the database has a version that
    ``migrations`` lack, or when a file that was applied has changed since.
    """
    made = rows("SELECT 1 FROM system.tables WHERE database = currentDatabase() AND name = 'schema_version'")
    if not made:
        command(_VERSIONS)
    known = {migration.version: migration for migration in migrations}
    applied = set()
    versions = "SELECT version, name, checksum FROM schema_version ORDER BY version"
    for version, name, checksum in rows(versions) if made else ():
        migration = known.get(int(str(version)))
        if migration is None:
            raise StoreError(
                f"{where}: the store has schema version {version} ({name}); this LOMS knows those up to {max(known)}",
                hint="start the newer LOMS that wrote it, or set store.path to another directory",
            )
        if migration.checksum != checksum:
            raise StoreError(
                f"{where}: schema file {migration.name} differs from the {name} that the store was made with",
                hint="a schema file never changes once released: reinstall LOMS",
            )
        applied.add(migration.version)
    for migration in sorted(migrations, key=lambda m: m.version):
        if migration.version not in applied:
            for statement in migration.statements:
                command(statement)
            command(
                "INSERT INTO schema_version SELECT "
                f"{migration.version}, '{migration.name}', '{migration.checksum}', fromUnixTimestamp64Milli({now_ms})"
            )
