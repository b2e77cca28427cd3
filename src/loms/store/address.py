"""``clickhouse://user:password@host:8123,other:8123/database``, taken apart."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import unquote

from loms.core.errors import ConfigError

_URL = re.compile(
    r"(?P<scheme>clickhouses?)://(?:(?P<user>[^:@/]*)(?::(?P<password>[^@/]*))?@)?(?P<hosts>[^/?#]+)(?:/(?P<database>\w*))?"
)
_HOST = re.compile(r"(?P<name>[^:\[\]@]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a ClickHouse listens for HTTP. ``str`` names the hosts and nothing that is secret."""

    hosts: tuple[tuple[str, int], ...]
    database: str
    user: str
    password: str = field(repr=False)
    secure: bool = False

    @classmethod
    def parse(cls, url: str) -> Address:
        """Raises `ConfigError`, which does not repeat the URL: a password may be in it.

        >>> str(Address.parse("clickhouse://me:p%40ss@db1,db2:8124/metrics"))
        'clickhouse://db1:8123,db2:8124/metrics'
        """
        found = _URL.fullmatch(url)
        hosts = [_HOST.fullmatch(host) for host in found["hosts"].split(",")] if found else []
        if found is None or not all(hosts):
            raise ConfigError(
                "store.url: not of the form clickhouse://user:password@host:8123/database (clickhouses:// for TLS)",
                hint="several hosts are separated by commas; in a password, write %40 for @, %3A for : and %2F for /",
            )
        secure = found["scheme"] == "clickhouses"
        return cls(
            hosts=tuple((h["name"].strip("[]"), int(h["port"] or (8443 if secure else 8123))) for h in hosts if h),
            database=found["database"] or "loms",
            user=unquote(found["user"] or "default"),
            password=unquote(found["password"] or ""),
            secure=secure,
        )

    def __str__(self) -> str:
        scheme = "clickhouses" if self.secure else "clickhouse"
        return f"{scheme}://{','.join(f'{shown(host)}:{port}' for host, port in self.hosts)}/{self.database}"


def shown(host: str) -> str:
    """The host as it stands in a URL."""
    return f"[{host}]" if ":" in host else host
