"""Options of the learning algorithm, by name, as a recipe states them. Free of torch: every actor imports them.

Sources: rStar2-Agent (arXiv 2508.20722), section on GRPO-RoC, eq. 4-7; defaults are the paper's unless a field says
otherwise.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from env.tool_call import Limits


class Options(BaseModel):
    """Base of all options: frozen, and an unknown key is an error that names it."""

    model_config = ConfigDict(frozen=True, extra="forbid")


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


class ObjectiveOptions(Options):
    """The clipped token-level objective."""

    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    clip_high: Annotated[float, Field(gt=0)] = 0.28
    denominator: Literal["batch_tokens", "group_tokens"] = "batch_tokens"
    """`batch_tokens`: all model tokens of the optimiser step. `group_tokens`: eq. 6, then the mean over groups."""
    importance_cap: Annotated[float, Field(gt=0)] | None = None
    """Truncated importance sampling between engine and learner log-probabilities: the cap, or off."""


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
    betas: tuple[float, float] = (0.9, 0.999)
    muon: MuonOptions | None = None
    gradient_clip: Annotated[float, Field(gt=0)] = 1.0
    """Largest global gradient norm; larger gradients are scaled down to it."""
    micro_batch_tokens: Annotated[int, Field(ge=1)] = 16_384
    """Tokens of packed sequences per forward and backward pass; gradients accumulate over the passes of a step."""
