"""What the director is asked, and what it answers."""

from __future__ import annotations

from actors.system.message import Done, Message, Request
from policies.dialogue import DialogueLimits
from policies.run_progress import Figures, StepFigures
from policies.stages import EvaluationOptions, FineTuningOptions, ReinforcementOptions


class Reports(Message, tag="director.reports"):
    reports: tuple[StepFigures, ...]
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
