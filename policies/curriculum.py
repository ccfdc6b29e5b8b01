"""Which problems next: seekable streams, so that a run can continue at any position without replaying it.

A stream is a pure function from a position to a problem; who trains keeps the position (the cursor).
"""

from __future__ import annotations

import random
from typing import Annotated, Literal

from pydantic import Field

from policies.arithmetic import Posed, make_problem
from policies.options import Options
from policies.trajectory import Problem


class ProblemOptions(Options):
    """Where problems come from."""

    source: Literal["arithmetic"] = "arithmetic"
    """`arithmetic`: made from a seed by `policies.arithmetic`."""
    levels: Annotated[tuple[int, ...], Field(min_length=1)] = (1, 2)
    seed: int = 0


class ProblemStream:
    """An endless stream of problems.

    Args:
        options: what to draw.
        run_seed: the run's seed; runs with different seeds see different training problems.
        held_out: evaluation problems instead of training problems. These do not depend on `run_seed`, so that
            all runs are measured by the same ones.
    """

    def __init__(self, options: ProblemOptions, *, run_seed: int, held_out: bool) -> None:
        self._options, self._held_out = options, held_out
        self._seed = options.seed if held_out else options.seed + 1_000_003 * run_seed

    def posed(self, index: int) -> Posed:
        """The problem at a position, with how it is solved."""
        return make_problem(self._seed, index, levels=self._options.levels, held_out=self._held_out)

    def problem(self, index: int) -> Problem:
        """The problem at a position."""
        return self.posed(index).problem


class ShuffledEpochs:
    """Endless passes over `count` items, each pass in an order of its own.

    Position `p` is item `p % count` of epoch `p // count`: whoever knows the seed and a position can go on from it.
    """

    def __init__(self, count: int, seed: str) -> None:
        assert count > 0, "there is nothing to pass over"
        self._count, self._seed = count, seed
        self._epoch, self._order = -1, list[int]()

    def items(self, first: int, count: int) -> list[int]:
        """The items at `count` positions from `first` on."""
        return [self._item(position) for position in range(first, first + count)]

    def _item(self, position: int) -> int:
        epoch, index = divmod(position, self._count)
        if epoch != self._epoch:
            order = list(range(self._count))
            random.Random(f"{self._seed}/epoch-{epoch}").shuffle(order)
            self._epoch, self._order = epoch, order
        return self._order[index]
