"""What the director is asked, and what it answers."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from actors.system.message import Done, Message, Request
from policies.dialogue import DialogueLimits
from policies.run_progress import Figures, Rewound, StepFigures
from policies.stages import EvaluationOptions, FineTuningOptions, ReinforcementOptions


class Reports(Message, tag="director.reports"):
    reports: tuple[Annotated[StepFigures | Rewound, Field(discriminator="kind")], ...]
    next: int
    """What to ask for next."""


class NextReports(Request[Reports], tag="director.next_reports"):
    """Reports from number `after` on; waits for one, at most `patience_s`. Those before it need not be told again."""

    after: int
    patience_s: float = 5.0


class StageDone(Message, tag="director.stage_done"):
    """A stage came to its end; `figures` sum it up."""

    figures: Figures


class RunFineTuning(Request[StageDone], tag="director.fine_tune"):
    name: str
    options: FineTuningOptions
    limits: DialogueLimits


class RunReinforcement(Request[StageDone], tag="director.reinforce"):
    name: str
    options: ReinforcementOptions
    limits: DialogueLimits


class RunEvaluation(Request[StageDone], tag="director.evaluate"):
    name: str
    """The state that is evaluated: the stage that has just ended."""
    options: EvaluationOptions
    limits: DialogueLimits


class SyncWeights(Request[Done], tag="director.sync"):
    """Bring the learner's weights to every generator."""


class RunView(Message, tag="director.view"):
    """What a balancer has to know that was started again."""

    gate_open: bool
    generators: tuple[str, ...]
    """Those that may get leases."""


class DescribeRun(Request[RunView], tag="director.describe"):
    lane: ClassVar[Literal["work", "control"]] = "control"
