"""Options of the learning algorithm, by name, as a recipe states them. Free of torch: every actor imports them.

Sources: rStar2-Agent (arXiv 2508.20722), section on GRPO-RoC, eq. 4-7; defaults are the paper's unless a field says
otherwise.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ModelWrapValidatorHandler, model_validator

from env.tool_call import Limits

INTEGER_BITS = 64
"""Of a whole number, sign included: TOML promises no more, and messages between actors carry no more."""


class Options(BaseModel):
    """Base of all options: frozen; an unknown key, and a number that is none, is an error that names it.

    Neither `nan` nor `true` is a number, and `inf` only where a field says so: there it takes a bound away.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="wrap")
    @classmethod
    def _numbers_are_numbers(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        made = handler(data)
        _check_numbers(data, made)
        return made


def _check_numbers(data: Any, made: BaseModel, table: str = "") -> None:
    """Raise `ValueError` for a number in `data` that is none, or too big. Tables in it that are options of the sandbox
    (env/ has no such base) are looked through, too."""
    for name, value in made if isinstance(data, dict) else ():
        given = data.get(name)
        if isinstance(value, BaseModel) and not isinstance(value, Options):
            _check_numbers(given, value, f"{table}{name}.")
        elif isinstance(value, bool) or not isinstance(value, int | float):
            continue
        elif isinstance(given, bool):
            raise ValueError(f"{table}{name} = {given}, but it is a number; give one")
        elif isinstance(value, int) and value.bit_length() >= INTEGER_BITS:
            raise ValueError(f"{table}{name} = {value} has more than {INTEGER_BITS} bits; give a smaller number")


class ResamplingOptions(Options):
    """How a group of sampled rollouts becomes the group that is learned from."""

    rule: Literal["roc", "none"] = "roc"
    """`roc`: sample `oversampling` times the group, keep the group by RoC. `none`: sample just the group."""
    oversampling: Annotated[int, Field(ge=1)] = 2
    positives: Literal["weighted", "sorted"] = "weighted"
    """`weighted`: successive draws with weight 1 / (penalty + epsilon). `sorted`: lowest penalties first, as in the
    paper's release."""
    epsilon: Annotated[float, Field(gt=0)] = 0.1
    minimum_positives: Annotated[int, Field(ge=0)] = 0
    """At least so many correct rollouts are kept if there are any (the paper's release uses 2)."""
    minimum_negatives: Annotated[int, Field(ge=0)] = 0


Bound = Annotated[float, Field(gt=0, allow_inf_nan=True)]
"""From above; `inf` bounds nothing."""
AdvantageRule = Literal["standardised", "centred", "leave_one_out"]
Denominator = Literal["batch_tokens", "group_tokens", "sequences", "constant"]
Ratio = Literal["token", "sequence"]
ImportanceLevel = Literal["token", "sequence", "geometric"]
ObjectiveName = Literal["grpo_roc", "grpo", "dr_grpo", "rloo", "gspo", "cispo"]

OBJECTIVES: dict[ObjectiveName, dict[str, Any]] = {
    "grpo_roc": {},
    "grpo": {},
    "dr_grpo": {"advantage": "centred", "denominator": "constant"},
    "rloo": {"advantage": "leave_one_out"},
    "gspo": {"ratio": "sequence", "clip_low": 3e-4, "clip_high": 4e-4, "denominator": "sequences"},
    "cispo": {"surrogate": "clipped_weight", "clip_low": 1.0, "clip_high": 4.0},
}
"""What each named objective is made of, where it differs from the defaults of `ObjectiveOptions`.

- `grpo_roc`, `grpo`: rStar2-Agent, eq. 6, with and without resampling (`ReinforcementOptions` sees to that): they
  differ in nothing else. The first GRPO (arXiv 2402.03300) is `denominator = "sequences"`, `clip_high = 0.2`.
- `dr_grpo` (arXiv 2503.20783): neither the standard deviation nor a sequence's own length in a quotient.
- `rloo` (arXiv 2402.14740): the baseline of a rollout is the mean of the others.
- `gspo` (arXiv 2507.18071): one ratio for each sequence, and its bounds. They are narrower than the gap between an
  engine in bfloat16 and the learner: set `importance_cap` there, so that the ratio is the learner's own.
- `cispo` (MiniMax-M1, arXiv 2506.13585): the clipped ratio is a weight without gradient and no token's gradient is cut
  off. No lower bound, as there; it gives no figure for the upper one.
"""
assert OBJECTIVES.keys() == set(get_args(ObjectiveName)), "ObjectiveName and OBJECTIVES must name the same objectives"


class ObjectiveOptions(Options):
    """The objective, by name or part by part: a part that is given replaces that of the name."""

    name: ObjectiveName = "grpo_roc"
    ratio: Ratio = "token"
    """`token`: current over old probability of each token. `sequence`: their geometric mean over a sequence's learned
    tokens, for all of them."""
    surrogate: Literal["pessimistic", "clipped_weight"] = "pessimistic"
    """`pessimistic`: min(ratio * A, clipped ratio * A), as PPO has it. `clipped_weight`: the clipped ratio, without
    gradient, times A times the log-probability."""
    clip_low: Annotated[float, Field(gt=0, le=1)] = 0.2
    clip_high: Bound = 0.28
    advantage: AdvantageRule = "standardised"
    """`standardised`: (r - mean) / std of the group. `centred`: r - mean. `leave_one_out`: r - mean of the others."""
    denominator: Denominator = "batch_tokens"
    """`batch_tokens`: all model tokens of the optimiser step. `group_tokens`: eq. 6, then the mean over groups.
    `sequences`: the mean of each sequence, then over sequences. `constant`: `constant_tokens` for each sequence."""
    constant_tokens: Annotated[int, Field(ge=1)] | None = None
    """Of `denominator = "constant"`; by default the stage's `limits.max_tokens`."""
    importance_cap: Bound | None = None
    """Truncated importance sampling between engine and learner log-probabilities: the cap, or off."""
    importance_band: tuple[Annotated[float, Field(ge=0)], Bound] | None = None
    """Masked importance sampling: tokens whose importance weight is outside (low, high) learn nothing."""
    importance_level: ImportanceLevel = "token"
    """Whose weight that is: each token's, the product over its sequence, or the geometric mean over it."""
    kl_weight: Annotated[float, Field(ge=0)] = 0.0
    """Of the divergence from the weights that the stage began with (GRPO's estimator, k3); 0 is off, as in the paper.
    Costs a copy of the model and a forward pass."""
    entropy_weight: Annotated[float, Field(ge=0)] = 0.0
    """Of the entropy bonus; 0 is off, as in the paper."""

    @model_validator(mode="before")
    @classmethod
    def _parts_of_the_named_objective(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        named = data.get("name", "grpo_roc")  # one that is unknown, or no text, is the field's own error
        return next((parts for name, parts in OBJECTIVES.items() if name == named), {}) | data

    @model_validator(mode="after")
    def _band_is_one(self) -> ObjectiveOptions:
        if self.importance_band is not None and not self.importance_band[0] < self.importance_band[1]:
            raise ValueError(f"importance_band is {self.importance_band}; give (low, high) with low below high")
        return self

    @property
    def corrects_mismatch(self) -> bool:
        """Whether the gap between engine and learner has a weight of its own, apart from the ratio."""
        return self.importance_cap is not None or self.importance_band is not None


class MaskingOptions(Options):
    """Whole rollouts that are not learned from. They stay in their group's baseline."""

    void_turns: bool = False
    """Rollouts with a turn that the model ended with neither a call nor an answer (SimpleTIR, arXiv 2509.02479): such
    turns tend to follow unfamiliar tool output and to be made of unlikely tokens, whose gradients explode."""
    overlong: bool = False
    """Rollouts cut off by a token or turn limit (DAPO's overlong filtering, arXiv 2503.14476). rStar2-Agent tried it
    and gave it up: more rollouts were cut off, since repetition went unpunished."""


class DynamicSamplingOptions(Options):
    """Sample more problems while too few groups carry signal (DAPO, arXiv 2503.14476)."""

    groups: Annotated[int, Field(ge=1)] | None = None
    """Groups with signal that are wanted; by default the stage's `prompts`."""
    rounds: Annotated[int, Field(ge=1)] = 3
    """At most so many further rounds, each of as many problems as groups are missing."""


class LimitOptions(Options):
    """What one rollout may spend."""

    max_tokens: Annotated[int, Field(ge=2)] = 8192
    """Tokens of the whole sequence, prompt included."""
    max_turns: Annotated[int, Field(ge=1)] = 10
    """Model turns."""
    max_turn_tokens: Annotated[int, Field(ge=1)] = 8192
    """Tokens of one model turn."""
    tool_response_characters: Annotated[int, Field(ge=0)] = 512
    """Characters of stdout and of stderr each that the model gets to read; the middle is cut out."""
    call: Limits = Limits()
    """What one tool call may use."""


class MuonOptions(Options):
    """Muon for the matrices between embeddings and head (Jordan et al. 2024); AdamW keeps all other parameters.

    Not the paper's. A model that is trained from scratch learns in a fraction of AdamW's steps with it.
    """

    learning_rate: Annotated[float, Field(gt=0)] = 0.01
    """Scaled to updates of AdamW's size (Moonlight, arXiv 2502.16982), so rates that suit AdamW are of use here."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.95


class OptimiserOptions(Options):
    """AdamW (and Muon, if asked for) and the schedule, which all learning rates follow."""

    learning_rate: Annotated[float, Field(gt=0)] = 1e-6
    warmup_steps: Annotated[int, Field(ge=0)] = 20
    schedule: Literal["constant", "cosine"] = "constant"
    """After the warm-up; `cosine` decays to zero at the stage's last step."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    muon: MuonOptions | None = None
    gradient_clip: Bound = 1.0
    """Largest global gradient norm; larger gradients are scaled down to it."""
    micro_batch_tokens: Annotated[int, Field(ge=1)] = 16_384
    """Tokens of packed sequences per forward and backward pass; gradients accumulate over the passes of a step."""
    activation_checkpointing: bool = False
    """Keep only what enters each layer, and compute the rest again in the backward pass: a third more work for memory
    that hardly grows with the number of layers."""
