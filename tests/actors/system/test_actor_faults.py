"""What a plan may say, pure."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import ValidationError

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


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        (
            {"kind": "freeze", "actor": "a", "process": "node"},
            "'freeze' can't be meant for; it may be actor, jail",
        ),
        ({"kind": "slow", "actor": "a", "process": "zygote"}, "it may be actor, node"),
        ({"kind": "squeeze", "actor": "a", "process": "jail"}, "it may be actor$"),
        ({"kind": "drop", "actor": "a", "process": "raylet"}, "it may be actor$"),
        ({"kind": "fill", "actor": "archive"}, "leave `actor` out"),
        ({"kind": "kill"}, "actor is empty; name whom 'kill' is to hit"),
        ({"kind": "slow", "actor": "a", "times": 1}, "times"),
        ({"kind": "melt", "actor": "a"}, "kind"),
    ],
)
def test_what_does_not_fit_together_is_refused_by_name(fields: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValidationError) as refused:
        ActorFault(at=0, **fields)
    (error,) = refused.value.errors()
    assert re.search(wrong, ".".join(map(str, error["loc"])) + ": " + error["msg"])


def test_a_plan_says_in_a_line_each_what_it_does() -> None:
    faults = (
        ActorFault(kind="slow", at=1, actor="generator-*", process="node", seconds=5, times=3, every=9),
        ActorFault(kind="squeeze", at=2, actor="environment-0", seconds=4),
        ActorFault(kind="fill", at=3, seconds=2),
        ActorFault(kind="kill", at=4, actor="environment-1", process="raylet"),
    )
    assert str(ActorFaultPlan(faults=faults)).splitlines() == [
        "at 1.000 s, and every 9 s: slow node of generator-* 3 times for 5 s",
        "at 2.000 s: squeeze environment-0 for 4 s",
        "at 3.000 s: fill the run folder for 2 s",
        "at 4.000 s: kill raylet of environment-1",
    ]


def test_only_environments_are_drawn_to_be_squeezed() -> None:
    actors = ["learner", "environment-0", "environment-1"]
    drawn = [ActorFaultPlan.draw(seed, actors=actors, until=9, kinds=("squeeze", "slow")) for seed in range(50)]
    squeezed = {fault.actor for plan in drawn for fault in plan.faults if fault.kind == "squeeze"}
    assert squeezed == {"environment-0", "environment-1"}
    slow = [fault for plan in drawn for fault in plan.faults if fault.kind == "slow"]
    assert {fault.actor for fault in slow} == set(actors) and len({fault.times for fault in slow}) > 1
    without = [ActorFaultPlan.draw(seed, actors=["learner"], until=9, kinds=("squeeze",)) for seed in range(5)]
    assert {fault.kind for plan in without for fault in plan.faults} == {"delay"}
