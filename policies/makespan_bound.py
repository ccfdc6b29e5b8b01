"""A time below which no schedule can play a set of rollouts, for the step cost that is assumed.

Two bounds, of which the larger holds. Work: every token costs its share of a step, and a step can't hold more than the
KV cache or the limit on running sequences lets it, spread over all engines. Path: no rollout ends before it has decoded
its own tokens one after another, alone on its engine, and waited for its calls.

What rollouts of one problem share (the prompt) is counted once, as a perfect prefix cache would have it, and nothing is
computed twice: so the bound holds for every placement and order. Source of the form: Graham's list scheduling bounds
(1969), with step time a + b B + c K.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from policies import tokens
from policies.step_cost import StepCost
from policies.trajectory import Trajectory


class _Path(NamedTuple):
    """One rollout: what it decodes, attends to and prefills."""

    tokens: int
    """Each takes a step: a turn's first one that of its prefill, the others one of decoding."""
    decoded: int
    context: int
    """Sum over its decoded tokens of the tokens that each attends to."""
    held: int
    """The same without the prompt, which others may hold for it."""
    prefilled: int
    """Tokens computed other than by decoding, prompt left out."""
    tool_seconds: float


def lower_bound(
    trajectories: Sequence[Trajectory], *, cost: StepCost, engines: int, kv_tokens: int, max_running: int
) -> float:
    """Seconds. 0 without trajectories."""
    paths = [_path(trajectory) for trajectory in trajectories]
    if not paths:
        return 0.0
    prompts = defaultdict(int)
    for trajectory in trajectories:
        prompts[trajectory.group] = tokens.count(trajectory.spans[0].ids)
    decoded = sum(path.decoded for path in paths)
    steps = max(sum(path.held for path in paths) / kv_tokens, decoded / max_running)
    prefilled = sum(path.prefilled for path in paths) + sum(prompts.values())
    work = cost.base * steps + cost.sequence * decoded + cost.context_token * sum(path.context for path in paths)
    longest = max(
        cost.base * path.tokens + cost.sequence * path.decoded + cost.context_token * path.context + path.tool_seconds
        for path in paths
    )
    return max((work + cost.prefill_token * prefilled) / engines, longest)


def _path(trajectory: Trajectory) -> _Path:
    prompt = tokens.count(trajectory.spans[0].ids)
    sampled = decoded = context = held = prefilled = 0
    length = prompt
    for span in trajectory.spans[1:]:
        size = tokens.count(span.ids)
        if span.kind == "model":
            steps = max(0, size - 1)
            sampled += size
            decoded += steps
            context += steps * length + steps * (steps + 1) // 2
            held += steps * (length - prompt) + steps * (steps + 1) // 2
        else:
            prefilled += size
        length += size
    seconds = sum(record.result.wall_seconds for record in trajectory.calls)
    return _Path(sampled, decoded, context, held, prefilled, seconds)
