"""A fault plan is data."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from env.faults import KINDS, Fault, FaultPlan

CALLS = [f"c{n}" for n in range(50)]


@given(st.integers(), st.floats(0, 1))
def test_a_drawn_plan_is_made_again_from_its_seed_and_survives_storing(seed: int, share: float):
    plan = FaultPlan.drawn(seed, CALLS, share)
    assert plan == FaultPlan.drawn(seed, CALLS, share)
    assert FaultPlan.model_validate_json(plan.model_dump_json()) == plan
    hit = [fault.call for fault in plan.faults]
    assert hit == [call for call in CALLS if call in set(hit)]  # each at most once, in order


def test_shares_of_nothing_and_all_are_exact():
    assert FaultPlan.drawn(0, CALLS, 0.0).faults == ()
    assert [fault.call for fault in FaultPlan.drawn(0, CALLS, 1.0).faults] == CALLS


@given(st.sampled_from(KINDS), st.integers(0, 3), st.integers(0, 3))
def test_a_fault_hits_the_run_that_it_names(kind, planned: int, run: int):
    fault = Fault(kind=kind, call="group-?/call-*", run=planned)
    plan = FaultPlan(faults=(fault, Fault(kind="late", call="group-1/*", run=planned)))
    assert plan.fault_for("group-1/call-22", run) == (fault if run == planned else None)
    assert plan.fault_for("group-12/call-22", run) is None


def test_the_first_fault_that_matches_is_the_one():
    first, second = Fault(kind="late", call="a"), Fault(kind="crash", call="*")
    plan = FaultPlan(faults=(first, second))
    assert (plan.fault_for("a", 0), plan.fault_for("b", 0)) == (first, second)


@pytest.mark.parametrize("wrong", [{"kind": "meteor"}, {"kind": "late", "late_s": -1}, {"kind": "crash", "when": 1}])
def test_what_is_no_fault_is_refused(wrong: dict[str, object]):
    with pytest.raises(ValidationError):
        Fault.model_validate(wrong)


def test_a_share_that_is_no_probability_is_refused():
    with pytest.raises(ValueError, match=r"between 0 and 1, not 1\.5"):
        FaultPlan.drawn(0, CALLS, 1.5)
