"""Which problems next: seekable streams, so that a run can continue at any position without replaying it.

A stream is a pure function from a position to a problem; who trains keeps the position (the cursor). Of a data set a
position is an epoch and an index into that epoch's order, and the order is a function of seed and epoch.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, field_validator, model_validator

from policies.arithmetic import Posed, check_levels, make_problem
from policies.data_options import DatasetOptions
from policies.options import Options
from policies.trajectory import Problem


class ProblemOptions(Options):
    """Where problems come from."""

    source: Literal["arithmetic", "dataset"] = "arithmetic"
    """`arithmetic`: made from a seed by `policies.arithmetic`. `dataset`: those of `dataset`."""
    levels: Annotated[tuple[Annotated[int, Field(strict=True)], ...], Field(min_length=1)] = (1, 2)
    """Of arithmetic problems: families of `policies.arithmetic`, by their level."""
    dataset: DatasetOptions | None = None
    seed: int = 0

    @field_validator("levels")
    @classmethod
    def _levels_have_families(cls, levels: tuple[int, ...]) -> tuple[int, ...]:
        check_levels(levels)
        return levels

    @model_validator(mode="after")
    def _names_its_data(self) -> ProblemOptions:
        if (self.source == "dataset") != (self.dataset is not None):
            raise ValueError(
                f"source is {self.source!r} and dataset is {'not ' if self.dataset is None else ''}given; "
                'set source = "dataset" together with dataset = { name = ... }'
            )
        return self


class Cursor(NamedTuple):
    """A position in a data set that is gone through again and again, each time in another order."""

    seed: int
    epoch: int
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]: nobody looks for a value in a cursor
    """Within the epoch's order, from 0."""


class ProblemStream:
    """An endless stream of problems; of held-out data sets one that ends where the data does.

    Args:
        options: what to draw.
        run_seed: the run's seed; runs with different seeds see different training problems, or data in another order.
        held_out: evaluation problems instead of training problems. These do not depend on `run_seed`, so that
            all runs are measured by the same ones: of a data set, its problems as they stand in the file.
        problems: those of the data set, if `options.source` says so.
    """

    def __init__(
        self, options: ProblemOptions, *, run_seed: int, held_out: bool, problems: Sequence[Problem] = ()
    ) -> None:
        assert bool(problems) == (options.source == "dataset"), "a data set comes with its problems, nothing else does"
        self._options, self._held_out, self._problems = options, held_out, problems
        self._seed = options.seed if held_out else options.seed + 1_000_003 * run_seed
        self._epochs = ShuffledEpochs(len(problems), str(self._seed)) if problems else None

    def posed(self, index: int) -> Posed:
        """The arithmetic problem at a position, with how it is solved."""
        assert self._options.source == "arithmetic", "nobody knows how the problems of a data set are solved"
        return make_problem(self._seed, index, levels=self._options.levels, held_out=self._held_out)

    def problem(self, index: int) -> Problem:
        """The problem at a position.

        Raises `ValueError` beyond the last problem of held-out data.
        """
        if self._epochs is None:
            return self.posed(index).problem
        if not self._held_out:
            (item,) = self._epochs.items(index, 1)
            return self._problems[item]
        if index >= len(self._problems):
            raise ValueError(
                f"{index + 1} held-out problems are asked for, but the data set holds {len(self._problems)}; "
                "lower evaluation.count"
            )
        return self._problems[index]

    def cursor(self, position: int) -> Cursor:
        """Where in the data set a position is."""
        epoch, index = divmod(position, len(self._problems))
        return Cursor(self._seed, epoch, index)

    def position(self, cursor: Cursor) -> int:
        """The inverse of `cursor`. Raises `ValueError` for a cursor into another order or a smaller data set."""
        if cursor.seed != self._seed or not 0 <= cursor.index < len(self._problems):
            raise ValueError(
                f"{cursor} is no place in this stream: it has seed {self._seed} and {len(self._problems)} problems"
            )
        return cursor.epoch * len(self._problems) + cursor.index


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
