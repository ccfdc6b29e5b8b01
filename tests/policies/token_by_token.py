"""A slow scheduler, one step at a time and one block at a time: what `ContinuousBatching` must agree with.

Written from vLLM V1's behaviour with plain lists: each block is an object, each cached block is looked up by the
content of all blocks up to it, and each step goes through every sequence.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from policies.batching_records import BatchingLimits, Turn
from tests.support.batching_traces import StepRecord


@dataclass(eq=False)
class Block:
    content: tuple | None = None
    holders: int = 0


@dataclass(eq=False)
class Sequence:
    turn: Turn
    generated: int = 0
    computed: int = 0
    blocks: list[Block] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return self.turn.length + self.generated

    def content(self, index: int, block_tokens: int) -> tuple:
        """What block `index` holds, everything before it included."""
        turn = self.turn
        if (index + 1) * block_tokens <= turn.prompt_tokens:
            return (turn.prompt, index)
        return (turn.prompt, turn.sequence, index)


class TokenByToken:
    def __init__(self, limits: BatchingLimits) -> None:
        self.limits, self.size = limits, limits.block_tokens
        self.line = [Block() for _ in range(limits.kv_blocks)]
        """Free blocks, those taken next in front."""
        self.cache: dict[tuple, list[Block]] = {}
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.admissions = self.preemptions = 0

    def add(self, turn: Turn) -> None:
        self.waiting.append(Sequence(turn))

    def abort(self, id: str) -> None:
        for sequence in [s for s in self.running if s.turn.id == id]:
            self.running.remove(sequence)
            self.free(sequence)
        self.waiting = [s for s in self.waiting if s.turn.id != id]

    def step(self, most: int = 1) -> tuple[int, StepRecord]:
        scheduled: dict[str, int] = {}
        budget, preempted, position = self.limits.max_step_tokens, False, 0
        while position < len(self.running) and budget:
            sequence = self.running[position]
            count = min(sequence.tokens - sequence.computed, budget)
            while not self.allocate(sequence, count):
                victim = self.running.pop()
                self.free(victim)
                victim.computed = 0
                self.waiting.insert(0, victim)
                self.preemptions += 1
                preempted = True
                if victim is sequence:
                    break
            if sequence not in self.running:
                break
            scheduled[sequence.turn.id] = count
            budget -= count
            position += 1
        while not preempted and budget and self.waiting and len(self.running) < self.limits.max_running:
            sequence = self.waiting[0]
            hits = self.hits(sequence)
            wanted = -(-sequence.tokens // self.size) - len(hits) + sum(not block.holders for block in hits)
            if wanted > len(self.line):
                break
            for block in hits:
                if not block.holders:
                    self.line.remove(block)
                block.holders += 1
            sequence.blocks = list(hits)
            sequence.computed = len(hits) * self.size
            count = min(sequence.tokens - sequence.computed, budget)
            assert self.allocate(sequence, count)
            self.running.append(self.waiting.pop(0))
            self.admissions += 1
            scheduled[sequence.turn.id] = count
            budget -= count
        return 1, self.sampled(scheduled)

    def sampled(self, scheduled: dict[str, int]) -> StepRecord:
        finished = []
        for sequence in list(self.running):
            sequence.computed += scheduled.get(sequence.turn.id, 0)
            if sequence.computed == sequence.tokens:
                sequence.generated += 1
                if sequence.generated == sequence.turn.new_tokens:
                    self.running.remove(sequence)
                    self.free(sequence)
                    finished.append(sequence.turn.id)
        return StepRecord(
            running=tuple(sequence.turn.id for sequence in self.running),
            waiting=len(self.waiting),
            admissions=self.admissions,
            preemptions=self.preemptions,
            used_blocks=self.limits.kv_blocks - len(self.line),
            finished=tuple(finished),
        )

    def hits(self, sequence: Sequence) -> list[Block]:
        found: list[Block] = []
        for index in range((sequence.tokens - 1) // self.size if self.limits.prefix_caching else 0):
            copies = self.cache.get(sequence.content(index, self.size))
            if not copies:
                break
            found.append(copies[0])
        return found

    def allocate(self, sequence: Sequence, count: int) -> bool:
        after = sequence.computed + count
        wanted = -(-after // self.size) - len(sequence.blocks)
        if wanted > len(self.line):
            return False
        for _ in range(wanted):
            block = self.line.pop(0)
            if block.content is not None:
                self.cache[block.content].remove(block)
                block.content = None
            block.holders = 1
            sequence.blocks.append(block)
        if self.limits.prefix_caching:
            for index, block in enumerate(sequence.blocks[: after // self.size]):
                if block.content is None:
                    block.content = sequence.content(index, self.size)
                    self.cache.setdefault(block.content, []).append(block)
        return True

    def free(self, sequence: Sequence) -> None:
        empty = []
        for block in reversed(sequence.blocks):
            block.holders -= 1
            if not block.holders:
                (self.line if block.content is not None else empty).append(block)
        self.line = empty + self.line
        sequence.blocks = []
