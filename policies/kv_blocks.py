"""Paged KV cache with prefix caching, as vLLM V1's block pool keeps it, in runs of blocks instead of single ones.

Invariants:
- free + held = total; a block is held by at least one sequence, or free; free blocks may still be cached;
- blocks leave the free list in vLLM's order: those without content first, then least recently released first, and of
  one sequence its last block first;
- all blocks of a run are held by the same sequences, so that a turn costs a handful of operations, not one per block.

What a block holds is named by the chain that it is part of (a prompt, or what a rollout added to it) and its index.
Blocks are cached when they are full. Two requests of a prompt share its full blocks, except that the last prompt token
is always computed again: a prompt of whole blocks has its last block once per request, as in vLLM.

Known difference from vLLM: when a sequence comes back shorter than it was (a turn sampled anew after an abort), what
is cached beyond its new length is not found again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

type Segment = tuple[Hashable, int, int | None]
"""Of a sequence: a chain, and the blocks `start` (inclusive) to `end` (exclusive; None: open) that belong to it.
Plain, as `Hits`: named tuples take several times as long to make, and each turn makes some."""

type Path = tuple[Segment, ...]


def path_of(prompt: Hashable, prompt_tokens: int, sequence: Hashable, block_tokens: int) -> Path:
    """Where the blocks of a sequence belong: its prompt's full blocks, then its own."""
    shared, full = (prompt_tokens - 1) // block_tokens, prompt_tokens // block_tokens
    own: Segment = sequence, full, None
    if full > shared:
        last: Segment = prompt, shared, full
        return ((prompt, 0, shared), last, own) if shared else (last, own)
    return ((prompt, 0, shared), own) if shared else (own,)


class _Run:
    """Cached blocks `start` to `start + count` of a chain; `holders` sequences hold them."""

    __slots__ = ("chain", "count", "holders", "start")

    def __init__(self, chain: Hashable, start: int, count: int, holders: int) -> None:
        self.chain, self.start, self.count, self.holders = chain, start, count, holders


type Hits = tuple[int, int, list[tuple[_Run, int]]]
"""Cached blocks that a sequence begins with: how many; of these, those that are free (taking them costs as much as
empty ones); the runs that they are in, with how many of each."""

NO_HITS: Hits = 0, 0, []


class Holding:
    """The blocks of one sequence."""

    __slots__ = ("cached", "open", "runs")

    def __init__(self) -> None:
        self.runs: list[_Run] = []
        self.cached = 0
        """Blocks in `runs`."""
        self.open = 0
        """Blocks that are not cached (yet)."""

    @property
    def blocks(self) -> int:
        return self.cached + self.open


class BlockPool:
    """See the module's docstring. `blocks` counts what sequences can use (vLLM's null block left out)."""

    def __init__(self, blocks: int, *, prefix_caching: bool = True) -> None:
        self.total, self.free = blocks, blocks
        self._caching = prefix_caching
        self._empty = blocks
        """Free blocks without content; always in front of the others."""
        self._released: OrderedDict[_Run, None] = OrderedDict()
        """Free cached runs, least recently released first."""
        self._index: dict[Hashable, dict[int, list[_Run]]] = {}
        """Runs by chain and first block; copies of one content in the order in which they were cached."""
        self.changes = 0
        """How often what `lookup` finds has changed."""

    def lookup(self, path: Path, most_blocks: int) -> Hits:
        """The longest cached prefix of at most `most_blocks` blocks."""
        position, evictable = 0, 0
        parts: list[tuple[_Run, int]] = []
        for chain, _, end in path:
            if end is None or end > most_blocks:
                end = most_blocks
            if position >= end:
                continue
            starts = self._index.get(chain)
            while position < end:
                if not starts or position not in starts:
                    return position, evictable, parts
                run = starts[position][0]
                count = min(run.count, end - position)
                if count < run.count and run.holders:
                    return position, evictable, parts  # a held run is shared as a whole or not at all
                parts.append((run, count))
                position += count
                if not run.holders:
                    evictable += count
        return position, evictable, parts

    def attach(self, holding: Holding, hits: Hits) -> None:
        """Let a sequence that holds nothing hold `hits`."""
        assert not holding.blocks
        self.changes += 1
        blocks, _, parts = hits
        for run, count in parts:
            if count < run.count:
                run = self._split(run, count)
            elif not run.holders:
                del self._released[run]
                self.free -= run.count
            run.holders += 1
            holding.runs.append(run)
        holding.cached = blocks

    def take(self, blocks: int) -> None:
        """Remove `blocks` from the free list; what was cached in them is lost."""
        assert blocks <= self.free, f"{blocks} blocks wanted, {self.free} free"
        self.free -= blocks
        if blocks <= self._empty:
            self._empty -= blocks
            return
        self.changes += 1
        blocks -= self._empty
        self._empty = 0
        while blocks:
            run = next(iter(self._released))
            evicted = min(blocks, run.count)
            run.count -= evicted
            blocks -= evicted
            if not run.count:
                del self._released[run]
                self._forget(run)

    def cache(self, holding: Holding, path: Path, full_blocks: int) -> None:
        """The sequence's first `full_blocks` blocks are full: those that are not cached yet become so."""
        if not self._caching or full_blocks <= holding.cached:
            return
        self.changes += 1
        for chain, start, end in path:
            cached = holding.cached
            if end is None or end > full_blocks:
                end = full_blocks
            new = end - (start if start > cached else cached)
            if new <= 0:
                continue
            last = holding.runs[-1] if holding.runs else None
            if (
                last is not None
                and last.holders == 1
                and last.start >= start
                and last.start + last.count == cached
                and last.chain == chain
            ):
                last.count += new
            else:
                run = _Run(chain, cached, new, 1)
                holding.runs.append(run)
                self._index.setdefault(chain, {}).setdefault(cached, []).append(run)
            holding.cached += new
            holding.open -= new
        assert holding.open >= 0

    def release(self, holding: Holding) -> None:
        """Give back all of a sequence's blocks; cached ones can be found until they are taken."""
        self.changes += 1
        self._empty += holding.open
        self.free += holding.open
        for run in reversed(holding.runs):
            run.holders -= 1
            if not run.holders:
                self._released[run] = None
                self.free += run.count
        holding.runs, holding.cached, holding.open = [], 0, 0

    def _split(self, run: _Run, count: int) -> _Run:
        """Take the first `count` blocks out of a free run; the rest keeps its place in line, out of reach."""
        head = _Run(run.chain, run.start, count, 0)
        copies = self._index[run.chain][run.start]
        copies[copies.index(run)] = head
        run.chain, run.start, run.count = None, run.start + count, run.count - count
        self.free -= count
        return head

    def _forget(self, run: _Run) -> None:
        if run.chain is None:
            return
        starts = self._index[run.chain]
        copies = starts[run.start]
        copies.remove(run)
        if not copies:
            del starts[run.start]
            if not starts:
                del self._index[run.chain]
