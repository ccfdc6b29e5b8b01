"""What stored rollouts said, as a script: their lengths, turns, tool times and verdicts drive a simulation.

Invariants:
- a rollout that is asked for by the name that it was recorded under says what it said then, whoever asks, and whenever;
- what was not seen is not made up: a rollout that a budget cut in the middle of a turn wants to say one token more than
  it got to, and one that ended with its calls is not continued (their response never fits).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

from policies import tokens
from policies.scripted import Rollout, Script, ScriptedCall, ScriptedTurn
from policies.trajectory import Trajectory, whole_turns

NEVER_FITS = 1 << 40
"""Tokens of a tool response after which nothing was recorded."""


class NothingRecorded(ValueError):
    """There is no rollout to drive a simulation with, or one that nobody can have played."""


class RecordedWorkload(Script):
    """The rollouts of one or more recorded stages.

    Groups of a stage stand in a row, step by step. Rollout `stage/step/group/sample` is that of the `group`-th group
    from the beginning of recorded step number `step` (counted from 0 in order, whatever its number was) and, in it, the
    `sample`-th. Whoever asks for more steps, groups or samples than were recorded gets them again from the beginning.

    Args:
        stages: by the name that a stage is asked for: its recorded rollouts, in any order; of rollouts with one id the
            last counts (it is what a resumed run went on with).

    Raises `NothingRecorded` for a stage without rollouts, or a rollout without a turn.
    """

    def __init__(self, stages: Mapping[str, Iterable[Trajectory]]) -> None:
        self._stages = {name: _Stage(name, trajectories) for name, trajectories in stages.items()}

    def rollout(self, sequence: str) -> Rollout:
        """See `Script.rollout`."""
        stage, step, group, sample = sequence.split("/")
        return self._stages[stage].rollout(int(step), int(group), int(sample))

    def longest_prompt(self, stage: str) -> int:
        """Tokens of the longest prompt of a stage."""
        return max(rollout.prompt_tokens for group in self._stages[stage].groups for rollout in group)

    def shape(self, stage: str) -> tuple[int, int]:
        """How many steps of a stage were recorded, and how many rollouts."""
        recorded = self._stages[stage]
        return len(recorded.starts), sum(map(len, recorded.groups))


class _Stage:
    """The rollouts of one stage: `groups[number][sample]`."""

    def __init__(self, name: str, trajectories: Iterable[Trajectory]) -> None:
        last = {trajectory.id: trajectory for trajectory in trajectories}
        if not last:
            raise NothingRecorded(f"no rollout of stage {name!r} is recorded")
        samples: dict[tuple[int, str], list[tuple[int, Rollout]]] = {}
        for trajectory in sorted(last.values(), key=_place):
            key = trajectory.step, trajectory.group
            samples.setdefault(key, []).append((trajectory.sample, recorded(trajectory)))
        self.groups = [[rollout for _, rollout in group] for group in samples.values()]
        self.starts: list[int] = []
        """Number of the first group of each recorded step."""
        previous = None
        for number, (step, _) in enumerate(samples):
            if step != previous:
                self.starts.append(number)
            previous = step

    def rollout(self, step: int, group: int, sample: int) -> Rollout:
        rollouts = self.groups[(self.starts[step % len(self.starts)] + group) % len(self.groups)]
        return rollouts[sample % len(rollouts)]


def _place(trajectory: Trajectory) -> tuple[int, int, str, int]:
    """Its place in the run: groups are numbered within a step."""
    number = trajectory.group.rpartition("/")[2]
    return trajectory.step, int(number) if number.isdecimal() else -1, trajectory.group, trajectory.sample


def recorded(trajectory: Trajectory) -> Rollout:
    """What a stored rollout said. Raises `NothingRecorded` if it said nothing, or has a time that is none."""
    prompt, *rest = trajectory.spans
    calls: dict[int, list[ScriptedCall]] = {}
    for record in trajectory.calls:
        call = ScriptedCall(record.result.wall_seconds, record.result.status, 0)
        calls.setdefault(record.turn, []).append(call)
    said = [sum(tokens.count(span.ids) for span in turn) for turn in whole_turns(rest) if turn[0].kind == "model"]
    seconds = [record.result.wall_seconds for record in trajectory.calls]
    if not said or min(said) < 1 or not all(0 <= each < inf for each in seconds):
        raise NothingRecorded(f"{trajectory.id} holds no model turn, an empty one, or a call of no possible duration")
    read = [tokens.count(span.ids) for span in rest if span.kind == "tool"]
    turns = [
        ScriptedTurn(count, _with_responses(calls.get(index, []), read[index] if index < len(read) else NEVER_FITS))
        for index, count in enumerate(said)
    ]
    last = turns[-1]
    if trajectory.finish == "length" and not last.calls:
        turns[-1] = last._replace(n_tokens=last.n_tokens + 1)
    elif not last.calls:
        turns[-1] = last._replace(correct=trajectory.verdict.correct)
    return Rollout(tokens.count(prompt.ids), tuple(turns))


def _with_responses(calls: list[ScriptedCall], response: int) -> tuple[ScriptedCall, ...]:
    """The calls of a turn, with the tokens of their common response on the first of them."""
    return tuple(call._replace(response_tokens=0 if index else response) for index, call in enumerate(calls))
