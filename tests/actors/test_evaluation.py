"""What an evaluation counts of the rollouts that it is given."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actors.evaluation import evaluate
from actors.messages import RunEvaluation
from actors.sampling import Sampled, Sampler
from policies.dialogue import DialogueLimits
from policies.run_progress import Figures
from policies.stages import EvaluationOptions
from policies.trajectory import Trajectory, Verdict
from tests.actors.storage.samples import random_trajectory


def played(correct: bool, serial: int) -> Trajectory:
    verdict = Verdict(correct=correct, reason="right" if correct else "wrong")
    return random_trajectory(serial).model_copy(update={"verdict": verdict, "finish": "answered"})


class Given(Sampler):
    """Answers with groups of given outcomes; None is a rollout that could not be finished."""

    def __init__(self, outcomes: list[list[bool | None]]) -> None:
        self._given = outcomes

    async def sample(self, *_: Any, **__: Any) -> Sampled:
        found = Sampled(dropped=["lost"] * sum(each is None for group in self._given for each in group))
        for number, group in enumerate(self._given):
            found.groups.append([played(each, number) for each in group if each is not None])
        return found


def figures(outcomes: list[list[bool | None]]) -> Figures:
    options = EvaluationOptions(count=len(outcomes), samples=len(outcomes[0]))
    request = RunEvaluation(name="rl", options=options, limits=DialogueLimits())
    return asyncio.run(evaluate(request, Given(outcomes)))


def test_how_often_each_problem_was_solved_is_told_and_what_is_lost_counts_as_wrong() -> None:
    told = figures([[True, True], [True, False], [False, None], [None, True]])
    assert told["accuracy"] == pytest.approx(4 / 8)
    assert [told[f"problems_solved_{count}_times"] for count in (0, 1, 2)] == [1.0, 2.0, 1.0]


def test_a_single_sample_needs_no_such_figures() -> None:
    assert not [name for name in figures([[True], [False]]) if name.startswith("problems_solved")]
