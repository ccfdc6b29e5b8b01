"""What the event loop and the engine's thread of `VllmEngine` hand each other, round by round.

Invariant: a token belongs to the weights that its step was done with, whatever has happened since.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from actors.engines.engine import SampleRequest, SampleResult
from policies.trajectory import VersionRun, WeightsVersion


@dataclass(slots=True)
class Running:
    """A request in the engine."""

    future: asyncio.Future[SampleResult]
    on_tokens: Callable[[list[int], list[float]], None] | None
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    version: WeightsVersion | None = None
    """The weights that sampled the last token."""
    earlier: tuple[VersionRun, ...] = ()

    def sampled(self, ids: list[int], logprobs: list[float], version: WeightsVersion) -> None:
        """Take in the tokens of a step."""
        if self.version is not None and version != self.version:
            known = len(self.ids) - sum(run.tokens for run in self.earlier)
            self.earlier += (VersionRun(self.version, known),)
        self.ids += ids
        self.logprobs += logprobs
        self.version = version


@dataclass(slots=True)
class Round:
    """What the pump hands to the thread."""

    add: list[SampleRequest]
    abort: list[str]


class Stepped(NamedTuple):
    """What comes back."""

    outputs: list[Any]
    version: WeightsVersion
    """The weights that the step was done with: by the time this is read, new ones may have come."""
