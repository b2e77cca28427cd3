"""Which rule groups, and so which alerts, are whose when several servers divide them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath

from loms.core.errors import ConfigError
from loms.core.model import Alert
from loms.rules.rule import Group


@dataclass(frozen=True, slots=True)
class Shard:
    """The ``number``-th (from 1) of ``count`` servers; each group of each rule file is evaluated by one of them."""

    number: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """
        >>> Shard.parse("2/3")
        Shard(number=2, count=3)
        """
        number, _, count = text.partition("/")
        if number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count):
            return cls(int(number), int(count))
        raise ConfigError(f"--shard {text!r} is not of the form i/n", hint="1/3, 2/3 and 3/3 are the three of three")

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def evaluates(self, group: Group) -> bool:
        """By a stable hash of the file's name (not its folder, which may differ between servers) and the group's."""
        key = f"{PurePath(group.file).name}\0{group.name}".encode()
        return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") % self.count == self.number - 1

    def owns(self, alert: Alert, groups: Iterable[Group]) -> bool:
        """Whether the alert, read from a store that all servers share, is this one's to go on with.

        ``groups`` are those of all servers: the first with the alert's rule decides. What no rule accounts for any
        more falls to the first server, so that somebody ends it.
        """
        for group in groups:
            if any(rule.made(alert) for rule in group.rules):
                return self.evaluates(group)
        return self.number == 1
