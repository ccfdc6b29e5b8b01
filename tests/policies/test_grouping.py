"""From rollouts to what is learned: void rollouts and groups without signal are left out, and counted."""

import random

import pytest
from pydantic import ValidationError

from env.tool_call import ToolCall, ToolResult
from policies.grouping import LearningBatch, StepRounds, add_groups
from policies.stages import ReinforcementOptions
from policies.trajectory import CallRecord, Verdict
from tests.policies.test_trajectory import MODEL, PROMPT, trajectory


def group(name: str, rewards: list[float], finish: str = "answered"):
    return [
        trajectory(PROMPT, MODEL, id=f"{name}/{index}", group=name, sample=index, reward=reward, finish=finish)
        for index, reward in enumerate(rewards)
    ]


def batch_of(groups, keep: int = 4, **options) -> LearningBatch:
    rewards = {each.id: each.reward for members in groups for each in members}
    stage = ReinforcementOptions.model_validate({"kind": "reinforce", "steps": 1, "group": keep} | options)
    batch = LearningBatch()
    add_groups(batch, groups, rewards, stage, random.Random(0))
    return batch


def test_half_of_an_oversampled_group_is_kept_and_its_advantages_sum_to_zero() -> None:
    batch = batch_of([group("a", [1, 1, 1, 1, 0, 0, 0, 0])])
    assert batch.kept == len(batch.sequences) == 4
    assert abs(sum(sequence.advantage for sequence in batch.sequences)) < 1e-6
    assert {sequence.group for sequence in batch.sequences} == {0}


def test_what_is_learned_from_is_named_in_the_learners_order() -> None:
    groups = [group("a", [1] * 8), group("b", [1, 0] * 4), group("c", [0, 0, 0, 1, 1, 1, 1, 1])]
    batch = batch_of(groups)
    assert [each.group for each in batch.trained] == ["b", "c"]
    assert all(rollout.startswith(f"{each.group}/") for each in batch.trained for rollout in each.rollouts)
    advantages = [advantage for each in batch.trained for advantage in each.advantages]
    assert advantages == [sequence.advantage for sequence in batch.sequences]
    owners = [index for index, each in enumerate(batch.trained) for _ in each.rollouts]
    assert owners == [sequence.group for sequence in batch.sequences]


def test_groups_without_signal_are_counted_and_not_learned() -> None:
    batch = batch_of([group("a", [1] * 8), group("b", [0] * 8), group("c", [1, 0] * 4)])
    assert (batch.groups, batch.groups_with_signal) == (3, 1)
    assert len(batch.sequences) == 4 and batch.kept == 12


def test_void_rollouts_count_nowhere() -> None:
    mixed = group("a", [1, 0, 1, 0]) + group("b", [0, 0], finish="sandbox_failure")
    batch = batch_of([mixed], keep=8)
    assert batch.void == 2
    assert len(batch.sequences) == 4


def test_a_group_that_is_all_void_is_no_fault() -> None:
    batch = batch_of([group("a", [0, 0], finish="sandbox_failure")])
    assert (batch.groups, batch.void, batch.sequences) == (1, 2, [])


VOID = {"finish": "answered", "verdict": Verdict(correct=False, reason="no_answer"), "reward": 0.0}
CUT = {"finish": "length", "verdict": Verdict(correct=False, reason="no_answer"), "reward": 0.0}


def mixed_group(*changes: dict):
    """A correct rollout, a wrong one, and one for each of `changes`."""
    wrong = {"verdict": Verdict(correct=False, extracted="2", reason="wrong"), "reward": 0.0}
    return [
        trajectory(PROMPT, MODEL, id=f"a/{index}", group="a", sample=index, **fields)
        for index, fields in enumerate([{}, wrong, *changes])
    ]


@pytest.mark.parametrize(
    ("masking", "learned"),
    [({}, 4), ({"void_turns": True}, 3), ({"overlong": True}, 3), ({"void_turns": True, "overlong": True}, 2)],
)
def test_masked_rollouts_count_in_the_baseline_and_are_not_learned(masking: dict, learned: int) -> None:
    batch = batch_of([mixed_group(VOID, CUT)], masking=masking)
    assert (len(batch.sequences), batch.masked, batch.kept) == (learned, 4 - learned, 4)
    # The advantages are those of one success in four, whoever is masked.
    assert batch.sequences[0].advantage == pytest.approx(3**0.5, rel=1e-4)
    assert all(each.advantage == pytest.approx(-(3**-0.5), rel=1e-4) for each in batch.sequences[1:])


def test_a_group_of_which_nothing_is_left_to_learn_carries_no_signal() -> None:
    masked = [trajectory(PROMPT, MODEL, id=f"b/{i}", **{**VOID, "reward": float(i)}) for i in range(2)]
    batch = batch_of([masked, mixed_group()], masking={"void_turns": True})
    assert (batch.groups_with_signal, batch.masked) == (1, 2)
    assert {each.group for each in batch.sequences} == {0}


def test_the_objective_says_how_rewards_become_advantages() -> None:
    for name, expected in (("dr_grpo", 0.75), ("rloo", 1.0), ("grpo", 3**0.5)):
        batch = batch_of([group("a", [1.0, 0.0, 0.0, 0.0])], objective={"name": name})
        assert batch.sequences[0].advantage == pytest.approx(expected, rel=1e-4)


def test_groups_of_several_rounds_are_numbered_through() -> None:
    batch = batch_of([group("a", [1, 0] * 4)])
    stage = ReinforcementOptions(kind="reinforce", steps=1, group=4)
    more = group("b", [1, 0] * 4)
    add_groups(batch, [more], {each.id: each.reward for each in more}, stage, random.Random(0))
    assert {each.group for each in batch.sequences} == {0, 1}
    assert (batch.groups, batch.groups_with_signal, batch.kept) == (2, 2, 8)


def test_figures_count_groups_and_the_tool_errors_that_positives_keep() -> None:
    good, bad = (
        CallRecord(turn=0, call=ToolCall(id=s, code=""), result=ToolResult.model_validate({"id": s, "status": s}))
        for s in ("success", "error")
    )
    clean = [trajectory(PROMPT, MODEL, id=f"c/{i}", calls=(good,)) for i in range(3)]
    sloppy = [trajectory(PROMPT, MODEL, id="d/0", calls=(bad, good)), trajectory(PROMPT, MODEL, id="d/1", reward=0.0)]
    figures = batch_of([clean, sloppy, group("b", [0, 0])]).figures()
    assert figures["tool_error_share_in_kept_positives"] == pytest.approx(1 / 5)
    assert (figures["groups"], figures["groups_with_signal"]) == (3, 1)
    assert (figures["groups_all_correct"], figures["groups_all_wrong"]) == (1, 1)
    assert figures["zero_signal_share"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "gspo", "cispo"])
def test_only_grpo_roc_resamples_unless_a_recipe_says_so(name: str) -> None:
    plain = ReinforcementOptions.model_validate({"kind": "reinforce", "steps": 1, "objective": {"name": name}})
    assert (plain.resampling.rule, plain.sampled) == ("none", plain.group)
    stated = plain.model_validate(plain.model_dump() | {"resampling": {"rule": "roc"}})
    assert (stated.resampling.rule, stated.sampled) == ("roc", 2 * plain.group)
    assert ReinforcementOptions.model_validate(plain.model_dump()) == plain
    assert ReinforcementOptions(kind="reinforce", steps=1).resampling.rule == "roc"


def test_grpo_roc_without_resampling_is_refused_by_name() -> None:
    with pytest.raises(ValidationError, match=r'set objective.name = "grpo"'):
        ReinforcementOptions.model_validate({"kind": "reinforce", "steps": 1, "resampling": {"rule": "none"}})


def test_a_constant_denominator_is_the_longest_sequence_unless_given() -> None:
    stage = {"kind": "reinforce", "steps": 1, "limits": {"max_tokens": 77}, "objective": {"name": "dr_grpo"}}
    assert ReinforcementOptions.model_validate(stage).objective.constant_tokens == 77
    stage["objective"] = {"name": "dr_grpo", "constant_tokens": 5}
    assert ReinforcementOptions.model_validate(stage).objective.constant_tokens == 5


def test_random_rewards_are_a_coin_for_each_rollout_whatever_its_verdict() -> None:
    members = group("a", [1.0] * 200 + [0.0] * 200)
    options = ReinforcementOptions.model_validate(
        {"kind": "reinforce", "steps": 1, "group": 400, "rewards": "random", "objective": {"name": "grpo"}}
    )
    rounds = StepRounds(options, random.Random(0))
    rounds.add([members])
    positive = [sequence.advantage > 0 for sequence in rounds.batch.sequences]
    assert len(positive) == 400
    assert 70 < sum(positive[:200]) < 130 and 70 < sum(positive[200:]) < 130
