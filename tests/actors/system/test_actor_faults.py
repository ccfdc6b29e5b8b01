from __future__ import annotations

import pytest

from actors.system.actor_faults import ActorFault, ActorFaultPlan

ACTORS = ["generator-0", "environment-0", "environment-1", "balancer"]


def test_a_repeated_fault_is_spelled_out_until_the_end() -> None:
    plan = ActorFaultPlan(faults=(ActorFault(kind="kill", at=3, every=4, actor="balancer"),))
    single = plan.spelled_out(0, actors=ACTORS, until=15)
    assert [(fault.at, fault.every) for fault in single.faults] == [(3, None), (7, None), (11, None)]


def test_a_pattern_hits_each_of_those_that_fit_and_nobody_else() -> None:
    plan = ActorFaultPlan(faults=(ActorFault(kind="kill", at=0, every=1, actor="environment-*"),))
    single = plan.spelled_out(5, actors=ACTORS, until=40)
    assert {fault.actor for fault in single.faults} == {"environment-0", "environment-1"}
    assert single == plan.spelled_out(5, actors=ACTORS, until=40)
    assert single != plan.spelled_out(6, actors=ACTORS, until=40)


def test_a_fault_that_fits_nobody_is_refused() -> None:
    plan = ActorFaultPlan(faults=(ActorFault(kind="kill", at=0, actor="judge"),))
    with pytest.raises(ValueError, match="judge"):
        plan.spelled_out(0, actors=ACTORS, until=1)
