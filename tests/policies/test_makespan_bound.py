"""The bound holds: what runs side by side, or is shared, is counted once."""

from __future__ import annotations

import pytest

from benchmarks.batching_simulation import lower_bound as bound_of_rollouts
from policies.batching_records import BatchingLimits
from policies.dialogue import DialogueLimits
from policies.makespan_bound import lower_bound
from policies.scripted import Rollout, Script, ScriptedCall, ScriptedTurn
from policies.step_cost import StepCost
from policies.trajectory import Trajectory
from policies.workloads import PROFILES, Workload
from tests.policies.test_recorded_workload import played

FREE = StepCost(base=0.0, sequence=0.0, context_token=0.0, prefill_token=0.0, prefill_pair=0.0)
STAGE = PROFILES["rstar2-stage-1"]


class OneRollout(Script):
    """All rollouts say the same."""

    def __init__(self, rollout: Rollout) -> None:
        self._rollout = rollout

    def rollout(self, sequence: str) -> Rollout:
        return self._rollout


LIMITS = DialogueLimits(max_tokens=STAGE.longest, max_turns=20, max_turn_tokens=STAGE.longest)


def bound(trajectories: list[Trajectory], cost: StepCost, engines: int = 1) -> float:
    return lower_bound(trajectories, cost=cost, engines=engines, kv_tokens=1 << 20, max_running=1 << 20)


def test_a_rollout_waits_for_the_longest_call_of_a_turn_and_for_one_turn_after_another() -> None:
    two, one = (ScriptedCall(1.0, "success", 1), ScriptedCall(3.0, "success", 1)), (ScriptedCall(0.5, "success", 1),)
    script = OneRollout(Rollout(10, (ScriptedTurn(5, two), ScriptedTurn(5, one), ScriptedTurn(5))))
    assert bound([played("rl/0/0/0", script, LIMITS)], FREE) == pytest.approx(3.0 + 0.5)


def test_a_prompt_that_rollouts_share_is_computed_once() -> None:
    prefill = FREE.model_copy(update={"prefill_token": 1.0})
    script = OneRollout(Rollout(100, (ScriptedTurn(5),)))
    of_one_group = [played(f"rl/0/0/{sample}", script, LIMITS) for sample in range(4)]
    assert bound(of_one_group, prefill) == 100
    assert bound([*of_one_group, played("rl/0/1/0", script, LIMITS)], prefill, engines=2) == 200 / 2


def test_rollouts_have_the_bound_of_what_dialogues_make_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.batching_simulation.CALL_OVERHEAD_S", 0.0)  # `played` has none
    workload = Workload(seed=3, stages={"rl": STAGE})
    names = [f"rl/0/{group}/{sample}" for group in range(6) for sample in range(5)]
    trajectories = [played(name, workload, LIMITS) for name in names]
    assert {trajectory.finish for trajectory in trajectories} == {"answered", "length"}
    limits, cost = BatchingLimits(kv_blocks=1000), StepCost()
    found = bound_of_rollouts({name: workload.rollout(name) for name in names}, STAGE.longest, 2, limits, cost)
    kv_tokens = limits.kv_blocks * limits.block_tokens
    expected = lower_bound(trajectories, cost=cost, engines=2, kv_tokens=kv_tokens, max_running=limits.max_running)
    assert found == pytest.approx(expected)
