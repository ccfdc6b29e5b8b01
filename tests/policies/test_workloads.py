"""Workloads say what the paper's figures say, the same to everybody, and nothing that a policy could see."""

import math
from random import Random

import pytest

from env.tool_call import ToolResult
from policies.balancing import Wish
from policies.dialogue import DialogueLimits, Execute, Finished, Sample
from policies.trajectory import Problem, WeightsVersion
from policies.workloads import PROFILES, ScriptedDialogue, Workload, WorkloadOptions

FIGURES = {
    "rstar2-stage-1": (8192, 4000, 0.10, 10),
    "rstar2-stage-2": (12288, 6000, 0.10, 10),
    "rstar2-stage-3": (12288, 8000, 0.15, 15),
}
"""Most tokens, mean response, share cut off, most turns."""


@pytest.mark.parametrize("name", PROFILES)
def test_profiles_have_the_papers_figures(name: str) -> None:
    longest, mean, cut, turns = FIGURES[name]
    workload = Workload(seed=5, stages={"rl": PROFILES[name]})
    rollouts = [workload.rollout(f"rl/0/{group}/{sample}") for group in range(256) for sample in range(16)]
    lengths = [min(each.tokens, longest) - each.prompt_tokens for each in rollouts]
    calls = sum(len(turn.calls) for each in rollouts for turn in each.turns) / len(rollouts)
    assert sum(lengths) / len(lengths) == pytest.approx(mean, rel=0.06)
    assert sum(each.tokens > longest for each in rollouts) / len(rollouts) == pytest.approx(cut, abs=0.03)
    assert calls == pytest.approx(45_000 / 16_384, rel=0.06)
    assert max(len(each.turns) for each in rollouts) <= turns
    assert all(each.turns[-1].calls == () and all(turn.calls for turn in each.turns[:-1]) for each in rollouts)


def test_the_spread_is_solved_for_and_agrees_with_a_draw_of_its_own() -> None:
    options = WorkloadOptions(prompt_tokens=200, longest=2000, response_tokens=700, cut=0.2)
    mu, sigma = options.length
    rng = Random(1)
    drawn = [rng.lognormvariate(mu, sigma) for _ in range(40_000)]
    assert sum(min(each, 1800) for each in drawn) / len(drawn) == pytest.approx(700, rel=0.02)
    assert sum(each > 1800 for each in drawn) / len(drawn) == pytest.approx(0.2, abs=0.01)


def test_lengths_within_a_group_are_more_alike_than_between_groups() -> None:
    def between(alike: float) -> float:
        workload = Workload(seed=1, stages={"rl": WorkloadOptions(alike=alike)})
        groups = [
            [math.log(workload.rollout(f"rl/0/{group}/{sample}").tokens) for sample in range(16)]
            for group in range(200)
        ]
        means = [sum(group) / len(group) for group in groups]
        centre = sum(means) / len(means)
        total = sum((each - centre) ** 2 for group in groups for each in group) / (200 * 16)
        return sum((mean - centre) ** 2 for mean in means) / 200 / total

    assert between(0.0) < 0.12 < 0.4 < between(0.5) < 0.75 < between(0.9)


def test_a_script_is_the_same_for_whoever_asks_and_another_for_another_seed() -> None:
    stages = {"rl": PROFILES["rstar2-stage-1"]}
    one, same, other = (Workload(seed=seed, stages=stages) for seed in (1, 1, 2))
    names = [f"rl/0/{index}/0" for index in range(20)]
    assert [one.rollout(name) for name in names] == [same.rollout(name) for name in reversed(names)][::-1]
    assert [one.rollout(name) for name in names] != [other.rollout(name) for name in names]
    assert one.call("rl/0/1/0/0/0") == one.turn("rl/0/1/0", 0).calls[0]


def test_a_policy_is_told_nothing_that_only_the_script_knows() -> None:
    assert set(Wish.model_fields) == {"rollout", "prompt_tokens", "max_tokens", "group", "generator"}


@pytest.mark.parametrize("longest", [8192, 1500, 400])
def test_a_scripted_dialogue_keeps_the_rules_of_every_dialogue(longest: int) -> None:
    """Turns as the script has them, cut where the limits cut; spans that add up; one result for each call."""
    workload = Workload(seed=1, stages={"rl": PROFILES["rstar2-stage-1"]})
    limits = DialogueLimits(max_tokens=longest, max_turns=4, max_turn_tokens=longest)
    version = WeightsVersion(0, 0)
    finishes = set()
    for index in range(60):
        name = f"rl/0/{index}/0"
        said = workload.rollout(name)
        dialogue = ScriptedDialogue(
            id=name,
            group=f"rl/0/{index}",
            workload=workload,
            problem=Problem(id="p", question="", gold=""),
            limits=limits.model_copy(update={"max_tokens": max(longest, said.prompt_tokens + 10)}),
        )
        while not isinstance(action := dialogue.next_action(), Finished):
            if isinstance(action, Sample):
                turn = said.turns[action.turn]
                whole = turn.n_tokens <= action.max_tokens
                cut = turn if whole else type(turn)(action.max_tokens)
                assert dialogue.counted().length == dialogue.length and dialogue.counted().turns == action.turn
                dialogue.said(cut, whole, version)
            else:
                assert isinstance(action, Execute)
                dialogue.executed([_ran(call.id) for call in action.calls])
        finishes.add(action.finish)
        if action.finish == "answered":
            assert action.verdict.correct == said.turns[-1].correct and dialogue.length == said.tokens
        else:
            assert not action.verdict.correct
    assert {"length"} <= finishes if longest < 8192 else {"answered", "turns"} <= finishes


def _ran(call_id: str) -> ToolResult:
    return ToolResult(id=call_id, status="success")


def test_a_mean_that_no_distribution_has_is_refused() -> None:
    with pytest.raises(ValueError, match="response_tokens=9000 must be above 0 and below longest - prompt_tokens"):
        WorkloadOptions(response_tokens=9000)
