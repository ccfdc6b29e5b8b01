"""The stages of a run, as options: fine-tuning, reinforcement, and the evaluation after each of them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from policies.curriculum import ProblemOptions
from policies.data_options import ChatDataOptions
from policies.demonstrations import HabitOptions
from policies.group_flow import TooOld
from policies.move_on import MoveOnOptions
from policies.options import (
    DynamicSamplingOptions,
    LimitOptions,
    MaskingOptions,
    ObjectiveOptions,
    OptimiserOptions,
    Options,
    ResamplingOptions,
)
from policies.rewards import RewardName

ASYNCHRONOUS_CAP = 2.0
"""`objective.importance_cap` of asynchronous stages whose recipe says nothing of it (Yao et al. 2025 use 2)."""


class FineTuningOptions(Options):
    """Non-reasoning SFT, on chats from files or on demonstrations that are made."""

    kind: Literal["fine_tune"]
    steps: Annotated[int, Field(ge=1)]
    batch: Annotated[int, Field(ge=1)] = 96
    """Demonstrations per optimiser step."""
    data: tuple[ChatDataOptions, ...] = ()
    """Chats to imitate, all sets mixed; none: demonstrations are made, and the fields below say how. Dialogues longer
    than `limits.max_tokens` are left out and counted."""
    demonstrations: Annotated[int, Field(ge=1)] = 4096
    """How many distinct ones are made."""
    habits: HabitOptions = HabitOptions()
    problems: ProblemOptions = ProblemOptions()
    limits: LimitOptions = LimitOptions()
    optimiser: OptimiserOptions = OptimiserOptions()

    @field_validator("problems")
    @classmethod
    def _demonstrations_can_be_made(cls, problems: ProblemOptions) -> ProblemOptions:
        if problems.source != "arithmetic":
            raise ValueError(
                f"source is {problems.source!r}, but demonstrations are made of arithmetic problems alone; leave "
                "`problems` out, and give chats that show how the data set's problems are solved in `data`"
            )
        return problems


class ReinforcementOptions(Options):
    """One stage of reinforcement learning.

    `objective.name` also says whether groups are resampled: `grpo_roc` does it, the others only where `resampling.rule`
    asks for it.
    """

    kind: Literal["reinforce"]
    steps: Annotated[int, Field(ge=1)]
    prompts: Annotated[int, Field(ge=1)] = 32
    """Problems per optimiser step."""
    group: Annotated[int, Field(ge=2)] = 16
    """Rollouts of each problem that are learned from (the paper's G).

    `resampling.oversampling` times as many are sampled.
    """
    rewards: RewardName = "verdict"
    """What is learned from, by a rule of `policies.rewards`. `verdict`: 1 for a right answer, else 0. Two control
    experiments: `shuffled` deals the step's rewards out to its rollouts at random. `random` tosses a coin for each
    rollout, whatever it says (arXiv 2506.10947); so nearly every group carries signal."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    problems: ProblemOptions = ProblemOptions()
    limits: LimitOptions = LimitOptions()
    max_staleness: Annotated[int, Field(ge=0)] = 0
    """How many versions the weights that sampled a token may be behind those that learn from it. 0 is synchronous
    training; with more, rollouts for so many steps to come are under way while the learner is at work."""
    weight_update: Literal["in_flight", "drain"] = "in_flight"
    """Of asynchronous training. `in_flight`: new weights come between two steps of an engine, and turns that are under
    way go on with them and with the KV cache that they have. `drain`: rollouts end with the weights that they began
    with, and new ones wait until all have."""
    too_old: TooOld = "drop"
    """`drop`: a group with a token that is too old is not learned from, and is counted. `wait`: steps wait for groups
    that would become too old; none is lost, and the learner idles at times."""
    objective: Annotated[ObjectiveOptions, Field(validate_default=True)] = ObjectiveOptions()
    resampling: Annotated[ResamplingOptions, Field(validate_default=True)] = ResamplingOptions()
    dynamic_sampling: DynamicSamplingOptions | None = None
    """Off by default: the paper drops groups without signal and goes on with what is left."""
    masking: MaskingOptions = MaskingOptions()
    optimiser: OptimiserOptions = OptimiserOptions()
    reset_optimiser: bool = True
    """Whether the optimiser's moments start afresh; else they go on from the stage before. Warm-up and schedule are the
    stage's own in both cases. (The paper resets before its third stage, and says nothing of the second.)"""
    refresh_reference: bool = True
    """Whether what `objective.kl_weight` holds on to is the model as this stage begins; else it is that of the stage
    before, if that had one."""
    move_on: MoveOnOptions | None = None
    """A rule by which the stage is over before its last step."""

    @field_validator("objective")
    @classmethod
    def _constant_is_the_longest_sequence(cls, objective: ObjectiveOptions, info: ValidationInfo) -> ObjectiveOptions:
        limits = info.data.get("limits")  # absent where it has a fault of its own
        if objective.denominator != "constant" or objective.constant_tokens is not None or limits is None:
            return objective
        return objective.model_copy(update={"constant_tokens": limits.max_tokens})

    @field_validator("objective")
    @classmethod
    def _stale_tokens_are_weighed(cls, objective: ObjectiveOptions, info: ValidationInfo) -> ObjectiveOptions:
        """Asynchronous training corrects for the weights that sampled, unless the recipe says how itself."""
        given = {"importance_cap", "importance_band"} & objective.model_fields_set
        if not info.data.get("max_staleness") or given:
            return objective
        return objective.model_copy(update={"importance_cap": ASYNCHRONOUS_CAP})

    @field_validator("resampling")
    @classmethod
    def _resampled_as_the_objective_says(cls, resampling: ResamplingOptions, info: ValidationInfo) -> ResamplingOptions:
        objective = info.data.get("objective")
        if objective is None or (objective.name == "grpo_roc") == (resampling.rule == "roc"):
            return resampling
        if objective.name == "grpo_roc":
            raise ValueError(
                f"rule is {resampling.rule!r}, but objective.name is 'grpo_roc'; "
                'set objective.name = "grpo" to learn without resampling'
            )
        return resampling if "rule" in resampling.model_fields_set else resampling.model_copy(update={"rule": "none"})

    @model_validator(mode="after")
    def _parts_of_the_objective_are_in_use(self) -> ReinforcementOptions:
        objective = self.objective
        if objective.constant_tokens is not None and objective.denominator != "constant":
            raise ValueError(
                f"objective.constant_tokens = {objective.constant_tokens} is divided by only with "
                f'objective.denominator = "constant", which is {objective.denominator!r}; set that, or leave it out'
            )
        if objective.importance_level != "token" and not objective.corrects_mismatch:
            raise ValueError(
                f"objective.importance_level = {objective.importance_level!r} says whose weight is cut or masked, but "
                "neither importance_cap nor importance_band is given; give one, or leave it out"
            )
        least = self.resampling.minimum_positives + self.resampling.minimum_negatives
        if least > self.group:
            raise ValueError(
                f"resampling.minimum_positives and minimum_negatives are {least} together, but only group = "
                f"{self.group} rollouts are kept; lower them"
            )
        return self

    @property
    def sampled(self) -> int:
        """Rollouts sampled for each problem."""
        return self.group * (self.resampling.oversampling if self.resampling.rule == "roc" else 1)


class EvaluationOptions(Options):
    """What each stage's result is measured by."""

    count: Annotated[int, Field(ge=1)] = 256
    """Held-out problems."""
    before: bool | None = None
    """Whether there is an evaluation before the first stage too; by default where that is not SFT."""
    samples: Annotated[int, Field(ge=1)] = 1
    """Rollouts of each; accuracy is their mean."""
    temperature: Annotated[float, Field(ge=0)] = 0.6
    problems: ProblemOptions = ProblemOptions()
    limits: LimitOptions = LimitOptions()

    @model_validator(mode="after")
    def _samples_differ(self) -> EvaluationOptions:
        if self.temperature == 0 and self.samples > 1:
            raise ValueError(f"samples = {self.samples}, but at temperature = 0 they are all the same; make it 1")
        return self
