"""Sequences that decode, one token a step each, by the steps in which they need another block.

One clock of steps serves them all: a sequence's `base` is its computed tokens minus the clock, and stays what it is
while the sequence decodes. Those whose bases are equal modulo the block size are a class: they open a block in the same
step.

Invariants:
- each sequence opens one block in any `block_tokens` steps on end;
- within a class, sequences are in the order in which they entered, which is that of their admission.
"""

from __future__ import annotations


class DecodingSequences[Sequence]:
    """See the module's docstring. A sequence is named by its order of admission and its base."""

    def __init__(self, block_tokens: int) -> None:
        self._block = block_tokens
        self._classes: list[dict[int, Sequence]] = [{} for _ in range(block_tokens)]
        self._sizes = [0] * (2 * block_tokens)
        """Sizes of the classes in the order in which the clock meets them (backwards), twice over."""
        self.count = 0
        self.bases = 0
        """Their sum."""

    def enter(self, order: int, base: int, sequence: Sequence) -> None:
        """A sequence begins to decode."""
        self._classes[base % self._block][order] = sequence
        place = -base % self._block  # the clock, modulo the block size, at which this class opens blocks
        self._sizes[place] += 1
        self._sizes[place + self._block] += 1
        self.count += 1
        self.bases += base

    def leave(self, order: int, base: int) -> bool:
        """A sequence decodes no more. False, and nothing else, if it did not."""
        if self._classes[base % self._block].pop(order, None) is None:
            return False
        place = -base % self._block
        self._sizes[place] -= 1
        self._sizes[place + self._block] -= 1
        self.count -= 1
        self.bases -= base
        return True

    def holds(self, order: int, base: int) -> bool:
        """Whether the sequence decodes."""
        return order in self._classes[base % self._block]

    def opening_at(self, clock: int) -> dict[int, Sequence]:
        """By order of admission, those that open a block in the step that begins at `clock`; not to be changed."""
        return self._classes[-clock % self._block]

    def blocks_in(self, clock: int, steps: int) -> int:
        """New blocks that `steps` steps need from `clock` on."""
        cycles, rest = divmod(steps, self._block)
        first = clock % self._block
        return cycles * self.count + sum(self._sizes[first : first + rest])

    def steps_within(self, clock: int, blocks: int) -> tuple[int, int]:
        """The most steps from `clock` on for which `blocks` new blocks are enough, and how many of these they need."""
        cycles = blocks // self.count
        steps, left = cycles * self._block, blocks - cycles * self.count
        while (needed := len(self._classes[-(clock + steps) % self._block])) <= left:
            left -= needed
            steps += 1
        return steps, blocks - left
