"""A recorded workload says what was recorded: rollouts that are played again by it come to the same trajectories."""

from collections.abc import Iterator

import pytest

from env.tool_call import ToolResult
from policies import tokens
from policies.dialogue import DialogueLimits, Execute, Finished, Sample
from policies.recorded_workload import NothingRecorded, RecordedWorkload
from policies.scripted import Script, ScriptedTurn
from policies.trajectory import Problem, Trajectory, WeightsVersion
from policies.workloads import PROFILES, ScriptedDialogue, Workload

LIMITS = DialogueLimits(max_tokens=6000, max_turns=3, max_turn_tokens=2500)
WORKLOAD = Workload(
    seed=4, stages={"rl": PROFILES["rstar2-stage-1"].model_copy(update={"call_errors": 0.3, "call_timeouts": 0.1})}
)


def played(name: str, script: Script, limits: DialogueLimits = LIMITS) -> Trajectory:
    """The trajectory of a rollout that says what the script says."""
    stage, step, group, sample = name.split("/")
    problem = Problem(id="p", question="", gold="")
    dialogue = ScriptedDialogue(
        id=name, group=f"{stage}/{step}/{group}", workload=script, problem=problem, limits=limits
    )
    while not isinstance(action := dialogue.next_action(), Finished):
        if isinstance(action, Sample):
            turn = script.turn(name, action.turn)
            whole = turn.n_tokens <= action.max_tokens
            dialogue.said(turn if whole else ScriptedTurn(action.max_tokens), whole, WeightsVersion(0, 0))
        else:
            assert isinstance(action, Execute)
            said = [(call.id, script.call(call.id)) for call in action.calls]
            dialogue.executed(
                [ToolResult(id=id, status=call.status, wall_seconds=min(call.run_seconds, 4.0)) for id, call in said]  # type: ignore[arg-type]
            )
    return Trajectory(
        id=name, group=dialogue.spans[0].ids.prompt, sample=int(sample), stage=stage, step=int(step), problem=problem,  # type: ignore[union-attr]
        spans=tuple(dialogue.spans), calls=tuple(dialogue.calls), turns=dialogue.turns, answer_tags=0,
        finish=action.finish, verdict=action.verdict, reward=0.0, generator="g",
    )  # fmt: skip


def names(steps: range = range(2), groups: int = 12, samples: int = 4) -> Iterator[str]:
    return (f"rl/{step}/{group}/{sample}" for step in steps for group in range(groups) for sample in range(samples))


RECORDED = [played(name, WORKLOAD) for name in names()]


def shape(trajectory: Trajectory) -> tuple:
    """All that drives a simulation: sizes of spans, calls, how it ended."""
    calls = [(each.turn, each.result.status, each.result.wall_seconds) for each in trajectory.calls]
    spans = [(span.kind, tokens.count(span.ids)) for span in trajectory.spans]
    return spans, calls, trajectory.verdict.correct, trajectory.truncated


def test_played_again_every_rollout_comes_to_the_same_trajectory() -> None:
    again = RecordedWorkload({"rl": reversed(RECORDED)})
    finishes = {trajectory.finish for trajectory in RECORDED}
    assert finishes == {"answered", "length", "turns"}, "the sample has to have all kinds of ends"
    for trajectory in RECORDED:
        assert shape(played(trajectory.id, again)) == shape(trajectory)


def test_with_more_room_a_cut_rollout_ends_after_what_was_seen_of_it() -> None:
    again = RecordedWorkload({"rl": RECORDED})
    roomy = DialogueLimits(max_tokens=100_000, max_turns=50, max_turn_tokens=100_000)
    for trajectory in RECORDED:
        longer = played(trajectory.id, again, roomy)
        in_a_turn = trajectory.finish == "length" and all(each.turn < trajectory.turns - 1 for each in trajectory.calls)
        assert longer.response_tokens == trajectory.response_tokens + in_a_turn
        assert longer.turns == trajectory.turns


def test_steps_and_groups_beyond_those_recorded_begin_again() -> None:
    again = RecordedWorkload({"rl": RECORDED})
    assert again.shape("rl") == (2, 96)
    assert again.rollout("rl/2/3/1") == again.rollout("rl/0/3/1") == as_recorded("rl/0/3/1")
    assert again.rollout("rl/0/12/1") == again.rollout("rl/1/0/1"), "a larger step takes of the next one"
    assert again.rollout("rl/1/12/1") == again.rollout("rl/0/0/1")
    assert again.rollout("rl/0/3/5") == again.rollout("rl/0/3/1")


def as_recorded(name: str):
    return RecordedWorkload({"rl": [played(name, WORKLOAD)]}).rollout("rl/0/0/0")


def test_steps_are_counted_from_the_first_recorded_and_groups_by_number() -> None:
    later = [played(name, WORKLOAD) for name in names(range(7, 9), groups=11, samples=1)]
    again = RecordedWorkload({"x": later[::-1]})
    for number, step in enumerate((7, 8)):
        for group in (0, 2, 10):
            assert again.rollout(f"x/{number}/{group}/0") == as_recorded(f"rl/{step}/{group}/0")


def test_calls_that_were_refused_are_refused_again_and_run_nowhere() -> None:
    trajectory = next(each for each in RECORDED if each.finish == "answered" and each.calls)
    first = trajectory.calls[0]
    refusal = ToolResult(id=first.call.id, status="invalid_call", reason="bad JSON")
    refused = first.model_copy(update={"result": refusal})
    edited = trajectory.model_copy(update={"calls": (refused, *trajectory.calls[1:])})
    again = played("rl/0/0/0", RecordedWorkload({"rl": [edited]}))
    assert [each.result.status for each in again.calls] == [each.result.status for each in edited.calls]
    assert again.calls[0].result.reason


def test_of_two_attempts_under_one_id_the_last_counts() -> None:
    first, second = RECORDED[0], RECORDED[1].model_copy(update={"id": RECORDED[0].id, "sample": RECORDED[0].sample})
    assert RecordedWorkload({"rl": [first, second]}).rollout("rl/0/0/0") == as_recorded(RECORDED[1].id)


def test_a_stage_without_rollouts_is_refused() -> None:
    with pytest.raises(NothingRecorded, match="no rollout of stage 'rl'"):
        RecordedWorkload({"rl": []})


@pytest.mark.parametrize("seconds", [None, float("nan"), float("inf"), -1.0])
def test_a_rollout_that_nobody_can_have_played_is_named(seconds: float | None) -> None:
    played_one = next(each for each in RECORDED if each.calls)
    if seconds is None:
        wrong = played_one.model_copy(update={"spans": played_one.spans[:1], "calls": ()})
    else:
        record = played_one.calls[0]
        result = record.result.model_copy(update={"wall_seconds": seconds})
        wrong = played_one.model_copy(update={"calls": (record.model_copy(update={"result": result}),)})
    with pytest.raises(NothingRecorded, match=f"{played_one.id} holds no model turn"):
        RecordedWorkload({"rl": [RECORDED[0], wrong]})
