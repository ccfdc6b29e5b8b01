"""The simulation of schedulers alone plays every rollout to its end, and never faster than is possible."""

from __future__ import annotations

import pytest

from benchmarks.batching_simulation import Simulation, lower_bound
from benchmarks.oracle import Oracle
from benchmarks.strategies import ORACLE, STRATEGIES, WARM
from policies.balancing import BalancerOptions, Strategy
from policies.balancing_strategies import make_strategy
from policies.batching_records import BatchingLimits
from policies.scripted import Rollout
from policies.step_cost import StepCost
from policies.workloads import Workload, WorkloadOptions

LONGEST = 1024
LIMITS, COST = BatchingLimits(kv_blocks=250, max_running=64), StepCost()


def strategy_of(name: str, rollouts: dict[str, Rollout]) -> Strategy:
    if name == ORACLE:
        lengths = {each: min(rollout.tokens, LONGEST) for each, rollout in rollouts.items()}
        return Oracle(BalancerOptions(), lengths, LONGEST)
    return make_strategy(BalancerOptions.model_validate({"strategy": name, "batch": 24}))


@pytest.mark.parametrize("name", [name for name in STRATEGIES if not name.endswith(WARM)])
def test_no_strategy_beats_the_bound_and_what_starts_at_once_preempts(name: str) -> None:
    options = WorkloadOptions(prompt_tokens=50, longest=LONGEST, response_tokens=500)
    workload = Workload(seed=2, stages={"rl": options})
    names = [f"rl/0/{index // 24}/{index % 24}" for index in range(96)]
    rollouts = {each: workload.rollout(each) for each in names}
    found = Simulation(strategy_of(name, rollouts), rollouts, LONGEST, 2, LIMITS, COST).run()
    assert found.makespan_s > lower_bound(rollouts, LONGEST, 2, LIMITS, COST)
    assert 0 < found.evenness <= 1
    if name == "worst_case":
        assert found.preemptions == 0
    if name in ("round_robin", "least_sessions"):
        assert found.preemptions > 20
