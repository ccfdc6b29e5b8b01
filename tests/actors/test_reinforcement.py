"""A stage's steps: how often it refills, what it counts, what reaches the learner.

Rollouts and learner are scripted; sampler, resampling and books are real.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from actors.group_feed import WeightsDoNotArrive
from actors.messages import (
    BalancerStatus,
    DescribeBalancer,
    DescribeGenerator,
    GeneratorStatus,
    Learn,
    Learned,
    RecordTrainedStep,
    RolloutFinished,
    RunReinforcement,
    RunRollout,
)
from actors.reinforcement import Reinforcement
from actors.sampling import Sampler, rollout_figures, staleness_figures
from actors.system.actor import Actor, ActorRef, BlobRef, handles
from env.tool_call import ToolCall, ToolResult
from policies.balancing import Capacity
from policies.batch import TrainingSequence
from policies.dialogue import DialogueLimits
from policies.run_progress import StagePosition, StepFigures
from policies.stages import ReinforcementOptions
from policies.trajectory import CallRecord, Trajectory, Verdict, WeightsVersion
from tests.policies.test_trajectory import MODEL, PROMPT, trajectory
from tests.support.in_process_stage import InProcessStage

NO_ANSWER = Verdict(correct=False, reason="no_answer")


class ScriptedLearner(Actor):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.batches: list[Sequence[TrainingSequence]] = []
        self.steps = 1
        self.may_learn, self.has_done_three = asyncio.Event(), asyncio.Event()

    @handles(Learn)
    async def on_learn(self, message: Learn) -> Learned:
        await self.may_learn.wait()
        self.batches.append(await self.port.blobs.get(BlobRef(message.blob)))
        self.steps += 1
        if self.steps == 4:
            self.has_done_three.set()
        return Learned(version=WeightsVersion(0, self.steps), metrics={"skipped": 0.0, "loss": 0.5})


class ScriptedRollouts(Actor):
    """Groups are right, wrong or mixed, as `kinds` says, in the order of their numbers."""

    def __init__(
        self,
        kinds: Sequence[str],
        learner: ScriptedLearner,
        *,
        sampled_by: int | None,
        learns_after: int,
        straggler: str,
    ) -> None:
        self.kinds, self.learner, self.asked, self.finished = kinds, learner, [], list[Trajectory]()
        self.sampled_by, self.learns_after, self.straggler = sampled_by, learns_after, straggler

    @handles(RunRollout)
    async def on_run(self, request: RunRollout) -> RolloutFinished:
        self.asked.append(request)
        if len(self.asked) >= self.learns_after:
            self.learner.may_learn.set()
        version = WeightsVersion(0, self.sampled_by or self.learner.steps)
        if request.id == self.straggler:
            await self.learner.has_done_three.wait()
        kind = self.kinds[int(request.group.rpartition("/")[2])]
        right = kind == "right" or (kind == "mixed" and request.sample % 2 == 0)
        verdict = Verdict(correct=right, extracted="1", reason="right" if right else "wrong")
        said = MODEL.model_copy(update={"version": version})
        finished = trajectory(
            PROMPT, said, id=request.id, group=request.group, sample=request.sample, stage=request.stage,
            problem=request.problem, verdict=verdict, reward=float(right),
        )  # fmt: skip
        self.finished.append(finished)
        return RolloutFinished(trajectory=finished)


class IdleGenerator(Actor):
    @handles(DescribeGenerator)
    async def on_describe(self, _: DescribeGenerator) -> GeneratorStatus:
        return GeneratorStatus(
            capacity=Capacity(
                generator="generator-0", incarnation=0, kv_tokens=1024, block_tokens=16, max_sequence_tokens=64
            ),
            engine="none", running=0, turns_served=0, generated_tokens=0, busy_seconds=0.0,
            kv_token_seconds=0.0, version=WeightsVersion(0, 1), peak_memory_bytes=0,
        )  # fmt: skip


class Ledger(Actor):
    """Keeps what steps were trained on."""

    def __init__(self) -> None:
        self.steps: list[RecordTrainedStep] = []

    @handles(RecordTrainedStep)
    async def on_trained(self, message: RecordTrainedStep) -> None:
        self.steps.append(message)


class IdleBalancer(Actor):
    @handles(DescribeBalancer)
    async def on_describe(self, _: DescribeBalancer) -> BalancerStatus:
        return BalancerStatus(loads=(), waiting=0, granted_total=0, queued_total=0, peak_leases=3, gate_open=True)


async def run(
    kinds: Sequence[str],
    position: StagePosition | None = None,
    sampled_by: int | None = None,
    learns_after: int = 0,
    straggler: str = "",
    **options,
) -> tuple[list[dict[str, Any]], ScriptedRollouts, ScriptedLearner]:
    """The figures of each step of a stage, and whom it asked.

    Args:
        sampled_by: the version of all tokens; None: that of the day.
        learns_after: rollouts that the learner's first step waits for.
        straggler: the rollout that ends when three steps are done.
    """
    stage_options = ReinforcementOptions.model_validate(
        {"kind": "reinforce", "steps": 1, "prompts": 4, "group": 2} | options
    )
    learner, reports = ScriptedLearner(), list[StepFigures]()
    rollouts = ScriptedRollouts(kinds, learner, sampled_by=sampled_by, learns_after=learns_after, straggler=straggler)
    async with InProcessStage() as stage:
        refs = {
            name: await stage.host(name, actor)
            for name, actor in (
                ("rollouts", rollouts), ("learner", learner),
                ("generator-0", IdleGenerator()), ("balancer", IdleBalancer()), ("archive", Ledger()),
            )
        }  # fmt: skip

        async def sync(*, in_flight: bool) -> WeightsVersion:
            return WeightsVersion(0, learner.steps)

        async def stepped(position: StagePosition, version: WeightsVersion, figures: StepFigures) -> None:
            assert (position.steps, version.step) == (figures.step, learner.steps)
            reports.append(figures)

        work = Reinforcement(
            stage.port,  # type: ignore[arg-type]
            RunReinforcement(name="rl", options=stage_options, limits=DialogueLimits()),
            sampler=Sampler(stage.port, [refs["rollouts"]]),  # type: ignore[arg-type]
            learner=refs["learner"], balancer=refs["balancer"], generators=[ActorRef("generator-0")],
            run_seed=0, version=WeightsVersion(0, 1), sync=sync, stepped=stepped, position=position,
            archive=refs["archive"],
        )  # fmt: skip
        await work.run()
    return [report.figures for report in reports], rollouts, learner


async def test_without_dynamic_sampling_a_step_learns_from_what_its_prompts_gave() -> None:
    (figures,), rollouts, learner = await run(["mixed", "right", "wrong", "mixed"])
    assert (figures["groups"], figures["groups_with_signal"], figures["zero_signal_share"]) == (4, 2, 0.5)
    assert (figures["groups_all_correct"], figures["groups_all_wrong"]) == (1, 1)
    assert (figures["refill_rounds"], figures["refill_groups"]) == (0, 0)
    assert figures["solved_share"] == 0.75
    assert len(rollouts.asked) == 4 * 4
    assert {each.group for each in learner.batches[0]} == {0, 1}


async def test_dynamic_sampling_refills_just_what_is_missing_until_enough_groups_carry_signal() -> None:
    kinds = ["mixed", "right", "wrong", "mixed", "wrong", "mixed", "mixed", "mixed"]
    (figures,), rollouts, learner = await run(kinds, dynamic_sampling={"rounds": 5})
    # Two of four are missing; of the next two one carries signal; the next one does, and it is enough.
    assert (figures["refill_rounds"], figures["refill_groups"]) == (2, 3)
    assert (figures["groups"], figures["groups_with_signal"]) == (7, 4)
    assert {each.group for each in learner.batches[0]} == {0, 1, 2, 3}
    assert len({request.id for request in rollouts.asked}) == len(rollouts.asked) == 7 * 4
    assert len({request.problem.id for request in rollouts.asked}) == 7  # each problem is posed once


async def test_refilling_is_bounded_and_the_step_goes_on_with_what_there_is() -> None:
    (figures,), rollouts, learner = await run(["right"] * 40, dynamic_sampling={"rounds": 3})
    assert (figures["refill_rounds"], figures["refill_groups"], figures["groups"]) == (3, 12, 16)
    assert learner.batches == [] and figures["groups_with_signal"] == 0
    assert len(rollouts.asked) == 16 * 4


async def test_the_next_step_takes_the_problems_after_those_of_the_refills() -> None:
    kinds = ["mixed", "mixed", "mixed", "wrong", "mixed"]
    figures, rollouts, _ = await run(kinds, steps=2, dynamic_sampling={"rounds": 1})
    first, second = ({r.problem.id for r in rollouts.asked if r.step == step} for step in (0, 1))
    assert [each["refill_groups"] for each in figures] == [1, 1]
    assert len(first) == len(second) == 5 and not first & second


async def test_a_stage_that_goes_on_takes_the_problems_after_those_that_it_has_had() -> None:
    kinds = ["mixed"] * 4
    _, whole, _ = await run(kinds, steps=3)
    figures, rest, _ = await run(kinds, StagePosition(stage="rl", steps=1, cursor=4), steps=3)
    assert len(figures) == 2
    assert [(r.id, r.problem) for r in rest.asked] == [(r.id, r.problem) for r in whole.asked if r.step > 0]


async def test_a_step_that_taught_nothing_has_no_learners_figures_rather_than_zeros() -> None:
    (figures,), _, _ = await run(["right"] * 4)
    assert figures["learner_mismatch_kl"] is None and figures["learner_skipped"] == 1
    (figures,), _, _ = await run(["wrong"] * 4)
    assert figures["tool_error_share_in_correct"] is None
    assert figures["tool_error_share_in_kept_positives"] is None


async def test_fewer_groups_than_prompts_can_be_wanted() -> None:
    (figures,), _, _ = await run(["mixed", "right", "right", "right"], dynamic_sampling={"groups": 1})
    assert figures["refill_rounds"] == 0


async def test_synchronous_training_is_never_stale_and_says_so() -> None:
    figures, _, _ = await run(["mixed"] * 4)
    assert (figures[0]["staleness_mean"], figures[0]["staleness_max"]) == (0.0, 0.0)


async def test_rollouts_of_the_next_step_are_under_way_while_the_learner_is_at_work() -> None:
    """The learner gives no answer before two steps' worth of rollouts was asked for."""
    figures, rollouts, learner = await run(["mixed"] * 4, steps=3, max_staleness=1, learns_after=2 * 4 * 4)
    assert [each["groups"] for each in figures] == [4, 4, 4] and len(learner.batches) == 3
    assert figures[0]["groups_under_way"] == 4 and figures[2]["groups_under_way"] == 0
    assert (figures[0]["staleness_max"], figures[1]["staleness_max"]) == (0, 1)
    assert len({request.id for request in rollouts.asked}) == len(rollouts.asked) == 3 * 4 * 4


async def test_a_stage_that_goes_on_begins_the_groups_again_that_were_under_way() -> None:
    position = StagePosition(stage="rl", steps=1, cursor=8, under_way=(3, 5, 6))
    _, rollouts, _ = await run(["mixed"] * 4, position, steps=3, max_staleness=1)
    groups = dict.fromkeys(request.group for request in rollouts.asked)
    assert list(groups)[:3] == ["rl/0/3", "rl/1/1", "rl/1/2"]
    # Two steps of four are left: beside those three the next five, and no other.
    assert sorted(groups) == sorted([*list(groups)[:3], "rl/2/0", "rl/2/1", "rl/2/2", "rl/2/3", "rl/3/0"])


async def test_a_group_that_was_overtaken_until_it_is_too_old_is_dropped_and_counted() -> None:
    figures, rollouts, learner = await run(["mixed"] * 4, steps=5, max_staleness=1, straggler="rl/0/1/2")
    assert [each["groups"] for each in figures] == [4] * 5 and figures[0]["groups_too_old"] == 0
    assert sum(each["groups_too_old"] for each in figures) == 1
    assert max(each["staleness_max"] for each in figures) == 1 and len(learner.batches) == 5
    assert len({request.group for request in rollouts.asked}) == 5 * 4 + 1, "another one has taken its place"


async def test_weights_that_never_arrive_end_the_stage_and_it_says_so() -> None:
    with pytest.raises(WeightsDoNotArrive, match="more than max_staleness = 1 versions behind"):
        await run(["mixed"] * 4, steps=4, max_staleness=1, sampled_by=1)


def test_staleness_weighs_versions_by_tokens() -> None:
    old = MODEL.model_copy(update={"version": WeightsVersion(0, 3)})
    new = MODEL.model_copy(update={"version": WeightsVersion(0, 5)})
    figures = staleness_figures([trajectory(PROMPT, old, old, new)], WeightsVersion(0, 5), 2)
    histogram = {"staleness_tokens_0": 2.0, "staleness_tokens_1": 0.0, "staleness_tokens_2": 4.0}
    expected = {"staleness_mean": 4 / 3, "staleness_max": 2.0, "several_versions_share": 1.0}
    assert figures == pytest.approx(expected | histogram)
    assert set(staleness_figures([], WeightsVersion(0, 0), 2).values()) == {None}


def called(*programs: str) -> tuple[CallRecord, ...]:
    return tuple(
        CallRecord(turn=0, call=ToolCall(id=str(i), code=code), result=ToolResult(id=str(i), status="success"))
        for i, code in enumerate(programs)
    )


@pytest.mark.parametrize(
    ("name", "made", "expected"),
    [
        ("duplicate_call_share", lambda: [trajectory(PROMPT, MODEL, calls=called("a", "a", "b", "a"))], 0.5),
        ("duplicate_call_share", lambda: [trajectory(PROMPT, MODEL)], 0.0),
        ("void_turn_share", lambda: [trajectory(PROMPT, MODEL), trajectory(PROMPT, MODEL, verdict=NO_ANSWER)], 0.5),
        ("truncated_share", lambda: [trajectory(PROMPT, MODEL), trajectory(PROMPT, MODEL, finish="turns")], 0.5),
        ("response_tokens_max", lambda: [trajectory(PROMPT, MODEL), trajectory(PROMPT, MODEL, MODEL)], 4.0),
        ("response_tokens_p95", lambda: [trajectory(PROMPT, MODEL)] * 3, 2.0),
    ],
)
def test_rollouts_are_counted(name: str, made: Callable[[], list[Trajectory]], expected: float) -> None:
    assert rollout_figures(made())[name] == pytest.approx(expected)
