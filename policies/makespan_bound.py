"""A time below which no schedule can play a set of rollouts, for the step cost that is assumed.

Two bounds, of which the larger holds. Work: every token costs its share of a step, and a step can't hold more than the
KV cache or the limit on running sequences lets it, spread over all engines. Path: no rollout ends before it has decoded
its own tokens one after another, alone on its engine, and waited for its calls.

What rollouts of one problem share (the prompt) is counted once, as a perfect prefix cache would have it, and nothing is
computed twice: so the bound holds for every placement and order. Source of the form: Graham's list scheduling bounds
(1969), with step time a + b B + c K.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from policies import tokens
from policies.step_cost import StepCost
from policies.trajectory import Trajectory, whole_turns


class Path(NamedTuple):
    """One rollout: what it decodes, attends to and prefills."""

    group: str
    """Rollouts of one group share the prompt."""
    prompt_tokens: int
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
    paths = [_path_of(trajectory) for trajectory in trajectories]
    return bound_of_paths(paths, cost=cost, engines=engines, kv_tokens=kv_tokens, max_running=max_running)


def bound_of_paths(paths: Sequence[Path], *, cost: StepCost, engines: int, kv_tokens: int, max_running: int) -> float:
    """As `lower_bound`, of rollouts that are no trajectories (yet)."""
    if not paths:
        return 0.0
    prompts = {path.group: path.prompt_tokens for path in paths}
    decoded = sum(path.decoded for path in paths)
    steps = max(sum(path.held for path in paths) / kv_tokens, decoded / max_running)
    prefilled = sum(path.prefilled for path in paths) + sum(prompts.values())
    work = cost.base * steps + cost.sequence * decoded + cost.context_token * sum(path.context for path in paths)
    longest = max(
        cost.base * path.tokens + cost.sequence * path.decoded + cost.context_token * path.context + path.tool_seconds
        for path in paths
    )
    return max((work + cost.prefill_token * prefilled) / engines, longest)


def _path_of(trajectory: Trajectory) -> Path:
    prompt, *rest = trajectory.spans
    sizes = [(turn[0].kind == "model", sum(tokens.count(span.ids) for span in turn)) for turn in whole_turns(rest)]
    waits: dict[int, float] = {}
    for record in trajectory.calls:  # those of one turn run side by side
        waits[record.turn] = max(waits.get(record.turn, 0.0), record.result.wall_seconds)
    return path_of(trajectory.group, tokens.count(prompt.ids), sizes, sum(waits.values()))


def path_of(group: str, prompt: int, sizes: Iterable[tuple[bool, int]], tool_seconds: float) -> Path:
    """The path of a rollout.

    Args:
        prompt: its tokens.
        sizes: what comes after the prompt, in order: whether the model said it, and how many tokens it has.
        tool_seconds: for which it waits for calls.
    """
    sampled = decoded = context = held = prefilled = 0
    length = prompt
    for is_models, size in sizes:
        if is_models:
            steps = max(0, size - 1)
            sampled += size
            decoded += steps
            context += steps * length + steps * (steps + 1) // 2
            held += steps * (length - prompt) + steps * (steps + 1) // 2
        else:
            prefilled += size
        length += size
    return Path(group, prompt, sampled, decoded, context, held, prefilled, tool_seconds)
