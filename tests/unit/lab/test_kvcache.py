"""Paged blocks and the prefix cache, worked out by hand."""

from __future__ import annotations

import subprocess
import sys

from loms.lab.kvcache import BlockPool, chained_hash


def test_blocks_for_rounds_up() -> None:
    pool = BlockPool(8, block_size=16)
    assert [pool.blocks_for(tokens) for tokens in (0, 1, 16, 17, 32)] == [0, 1, 1, 2, 2]


def test_allocation_is_all_or_nothing() -> None:
    pool = BlockPool(3, block_size=4)
    assert pool.allocate(2) == [0, 1]
    assert pool.allocate(2) is None
    assert (pool.free, pool.used, pool.utilization) == (1, 2, 1 - 1 / 3)


def test_a_released_block_is_found_until_it_is_given_away() -> None:
    pool = BlockPool(2, block_size=4)
    first = chained_hash(0, (1, 2, 3, 4))
    (block,) = pool.allocate(1) or []
    pool.file(block, first)
    pool.release([block])
    assert pool.match([first]) == [block]
    assert pool.free == 2
    assert pool.allocate(2) is not None
    assert pool.match([first]) == []
    assert pool.evictions == 1


def test_match_stops_at_the_first_gap() -> None:
    pool = BlockPool(3, block_size=2)
    blocks = pool.allocate(3) or []
    for block, digest in zip(blocks, (11, 22, 33), strict=True):
        pool.file(block, digest)
    assert pool.match([11, 99, 33]) == [blocks[0]]
    assert pool.match([99]) == []


def test_a_shared_block_is_freed_by_its_last_holder() -> None:
    pool = BlockPool(2, block_size=4)
    (block,) = pool.allocate(1) or []
    assert pool.allocate(0, shared=[block]) == []
    pool.release([block])
    assert pool.used == 1
    pool.release([block])
    assert pool.used == 0


def test_taking_up_a_free_cached_block_costs_a_free_block() -> None:
    pool = BlockPool(2, block_size=4)
    (block,) = pool.allocate(1) or []
    pool.file(block, 7)
    pool.release([block])
    assert pool.allocate(2, shared=[block]) is None
    assert pool.allocate(1, shared=[block]) is not None
    assert pool.free == 0
    assert pool.match([7]) == [block]


def test_the_end_of_the_least_recently_used_sequence_is_evicted_first() -> None:
    pool = BlockPool(4, block_size=1)
    old, new = pool.allocate(2) or [], pool.allocate(2) or []
    for block in (*old, *new):
        pool.file(block, 100 + block)
    pool.release(old)
    pool.release(new)
    assert pool.allocate(1) == [old[1]]
    assert pool.allocate(1) == [old[0]]
    assert pool.match([100 + new[0]]) == [new[0]]


def test_equal_content_is_filed_once() -> None:
    pool = BlockPool(2, block_size=4)
    first, second = pool.allocate(2) or []
    pool.file(first, 5)
    pool.file(second, 5)
    assert pool.match([5]) == [first]
    assert pool.cached == 1
    pool.release([second])
    assert pool.allocate(1) == [second]
    assert pool.match([5]) == [first]


def test_leaked_blocks_stay_used_until_recovered() -> None:
    pool = BlockPool(4, block_size=4)
    blocks = pool.allocate(3) or []
    pool.leak(blocks[2:])
    pool.release(blocks[:2])
    assert (pool.used, pool.free, pool.leaked) == (1, 3, frozenset({blocks[2]}))
    pool.recover()
    assert (pool.used, pool.free, pool.leaked) == (0, 4, frozenset())


def test_hashes_depend_on_everything_before_and_are_the_same_in_every_process() -> None:
    assert chained_hash(1, (5, 6)) != chained_hash(2, (5, 6))
    code = "from loms.lab.kvcache import chained_hash; print(chained_hash(chained_hash(0, (1, 2)), (3, 4)))"
    other = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(other.stdout) == chained_hash(chained_hash(0, (1, 2)), (3, 4))
