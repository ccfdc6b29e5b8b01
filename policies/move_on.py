"""When a stage of reinforcement is over before its last step: a rule on the figures of its steps.

The paper goes from its first stage to the second when about a tenth of the rollouts is cut off by the length limit and
the reward no longer rises (rStar2-Agent, arXiv 2508.20722, the section on training stages).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, model_validator

from policies.options import Options
from policies.run_progress import Figures

READ_BY_THE_RULE = ("truncated_share", "reward_mean")
"""Figures of a step."""


class MoveOnOptions(Options):
    """The rule; of the two conditions all that are given must hold."""

    window: Annotated[int, Field(ge=1)] = 10
    """Steps that are averaged over."""
    least_steps: Annotated[int, Field(ge=1)] = 20
    """Before so many steps the rule is not asked."""
    clip_share: Annotated[float, Field(ge=0, le=1)] | None = None
    """At least this share of the window's rollouts was cut off by a token or turn limit."""
    reward_gain: Annotated[float, Field(ge=0)] | None = None
    """The window's mean reward is no more than this above that of the window before: a plateau."""

    @property
    def steps_read(self) -> int:
        """How many of the last steps the rule looks at."""
        return self.window if self.reward_gain is None else 2 * self.window

    @model_validator(mode="after")
    def _says_something(self) -> MoveOnOptions:
        if self.clip_share is None and self.reward_gain is None:
            raise ValueError("give clip_share or reward_gain, or both; a rule without a condition would never hold")
        return self


def read_again(rule: MoveOnOptions | None, steps: Sequence[Figures]) -> tuple[Figures, ...]:
    """Of the figures of a stage's steps, all that the rule can read after further ones; nothing without a rule."""
    if rule is None:
        return ()
    return tuple({name: step.get(name) for name in READ_BY_THE_RULE} for step in steps[-rule.steps_read :])


def reason_to_move_on(rule: MoveOnOptions, steps: Sequence[Figures], done: int) -> str | None:
    """Why the stage is over after `done` steps, or None if it is not.

    Args:
        steps: the figures of the last steps (`READ_BY_THE_RULE`), as `read_again` has kept them; those without
            rollouts have none.
    """
    window = rule.window
    if done < rule.least_steps or len(steps) < rule.steps_read:
        return None
    reasons = []
    if rule.clip_share is not None:
        cut_off = _mean(steps[-window:], "truncated_share")
        if cut_off < rule.clip_share:
            return None
        reasons.append(f"{cut_off:.1%} of rollouts were cut off")
    if rule.reward_gain is not None:
        gain = _mean(steps[-window:], "reward_mean") - _mean(steps[-2 * window : -window], "reward_mean")
        if gain > rule.reward_gain:
            return None
        reasons.append(f"the reward rose by {gain:.3f}")
    return f"over the last {window} steps " + " and ".join(reasons)


def _mean(steps: Sequence[Figures], figure: str) -> float:
    values = [value for step in steps if (value := step.get(figure)) is not None]
    return sum(values) / len(values) if values else 0.0
