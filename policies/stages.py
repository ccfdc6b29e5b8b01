"""The stages of a run, as options: fine-tuning, reinforcement, and the evaluation after each of them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from policies.curriculum import ProblemOptions
from policies.demonstrations import HabitOptions
from policies.options import LimitOptions, ObjectiveOptions, OptimiserOptions, Options, ResamplingOptions


class FineTuningOptions(Options):
    """Non-reasoning SFT on demonstrations."""

    kind: Literal["fine_tune"]
    steps: Annotated[int, Field(ge=1)]
    batch: Annotated[int, Field(ge=1)] = 96
    """Demonstrations per optimiser step."""
    demonstrations: Annotated[int, Field(ge=1)] = 4096
    """How many distinct ones are made."""
    habits: HabitOptions = HabitOptions()
    problems: ProblemOptions = ProblemOptions()
    limits: LimitOptions = LimitOptions()
    optimiser: OptimiserOptions = OptimiserOptions()


class ReinforcementOptions(Options):
    """One stage of reinforcement learning."""

    kind: Literal["reinforce"]
    steps: Annotated[int, Field(ge=1)]
    prompts: Annotated[int, Field(ge=1)] = 32
    """Problems per optimiser step."""
    group: Annotated[int, Field(ge=2)] = 16
    """Rollouts of each problem that are learned from (the paper's G).

    `resampling.oversampling` times as many are sampled.
    """
    rewards: Literal["verdict", "shuffled"] = "verdict"
    """`shuffled` is a control experiment: the step's rewards are dealt out to its rollouts at random."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    problems: ProblemOptions = ProblemOptions()
    limits: LimitOptions = LimitOptions()
    resampling: ResamplingOptions = ResamplingOptions()
    objective: ObjectiveOptions = ObjectiveOptions()
    optimiser: OptimiserOptions = OptimiserOptions()

    @property
    def sampled(self) -> int:
        """Rollouts sampled for each problem."""
        return self.group * (self.resampling.oversampling if self.resampling.rule == "roc" else 1)


class EvaluationOptions(Options):
    """What each stage's result is measured by."""

    count: Annotated[int, Field(ge=1)] = 256
    """Held-out problems."""
    samples: Annotated[int, Field(ge=1)] = 1
    """Rollouts of each; accuracy is their mean."""
    temperature: Annotated[float, Field(ge=0)] = 0.6
    problems: ProblemOptions = ProblemOptions()
    limits: LimitOptions = LimitOptions()
