"""Paged key/value blocks with a prefix cache, after PagedAttention (Kwon et al., 2023, arXiv:2309.06180).

A block holds the keys and values of ``block_size`` consecutive tokens. A full block is filed under a hash that
covers its own tokens and all before them, so an equal prompt prefix is found block by block. A block that nobody
references keeps its content until it is needed: the least recently used one is evicted first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


def chained_hash(parent: int, tokens: Sequence[int]) -> int:
    """Hash of a full block, given the hash of the block before it (0 for the first).

    Python hashes integers and tuples of them without a random seed, so equal tokens give equal hashes in every process.
    """
    return hash((parent, *tokens))


class BlockPool:
    """``total`` blocks, each either free (possibly still holding cached content) or referenced by sequences.

    ``free + used == total`` always; leaked blocks are among the used ones.
    """

    def __init__(self, total: int, block_size: int) -> None:
        self.total = total
        self.block_size = block_size
        self.evictions = 0
        """Blocks with cached content that were given away to other tokens."""
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(total))
        self._references = [0] * total
        self._hash_of: list[int | None] = [None] * total
        self._block_of: dict[int, int] = {}
        self._leaked: list[int] = []

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        return sum(1 for count in self._references if count > 0)

    @property
    def leaked(self) -> frozenset[int]:
        """The blocks that a leak holds."""
        return frozenset(self._leaked)

    @property
    def cached(self) -> int:
        """Blocks, used or free, that a prefix lookup can find."""
        return len(self._block_of)

    @property
    def utilization(self) -> float:
        """Share of the blocks that are referenced, 0 to 1; cached but unreferenced blocks count as free."""
        return 1.0 - len(self._free) / self.total

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def match(self, hashes: Iterable[int]) -> list[int]:
        """The cached blocks of the longest prefix of ``hashes``; references are not taken yet."""
        found: list[int] = []
        for digest in hashes:
            block = self._block_of.get(digest)
            if block is None:
                break
            found.append(block)
        return found

    def allocate(self, count: int, shared: Sequence[int] = ()) -> list[int] | None:
        """Reference the ``shared`` blocks and take ``count`` fresh ones; None, and no change, if they do not fit."""
        revived = sum(1 for block in shared if self._references[block] == 0)
        if count + revived > len(self._free):
            return None
        for block in shared:
            if self._references[block] == 0:
                del self._free[block]
            self._references[block] += 1
        fresh = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            self._forget(block)
            self._references[block] = 1
            fresh.append(block)
        return fresh

    def file(self, block: int, digest: int) -> None:
        """Make a full block findable; the first block with a content keeps the name."""
        if digest not in self._block_of:
            self._block_of[digest] = block
            self._hash_of[block] = digest

    def release(self, blocks: Sequence[int]) -> None:
        """Give references back, the last block first: the end of a prompt is less likely to be asked for again."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free[block] = None

    def leak(self, blocks: Sequence[int]) -> None:
        """Never give these references back, until `recover`."""
        self._leaked.extend(blocks)

    def recover(self) -> None:
        """Give back what was leaked."""
        leaked, self._leaked = self._leaked, []
        self.release(leaked)

    def _forget(self, block: int) -> None:
        digest = self._hash_of[block]
        if digest is not None:
            self._hash_of[block] = None
            del self._block_of[digest]
            self.evictions += 1
