"""How long steps take: against adding them up one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from policies.step_cost import StepCost, StepWork

COSTS = st.builds(
    StepCost,
    base=st.sampled_from([0.0, 1e-4, 8e-3]),
    sequence=st.sampled_from([0.0, 15e-6]),
    context_token=st.sampled_from([0.0, 44e-9, 1e-5]),
)


@st.composite
def decoding_work(draw: st.DrawFn) -> StepWork:
    decoding = draw(st.integers(1, 200))
    return StepWork(draw(st.integers(1, 400)), decoding, decoding * draw(st.integers(1, 8000)))


@given(COSTS, decoding_work(), st.floats(0, 1.2))
def test_the_steps_begun_by_a_time_are_those_that_a_search_one_by_one_finds(
    cost: StepCost, work: StepWork, share: float
) -> None:
    seconds = share * cost.seconds(work)
    begun = 1
    while begun < work.steps and cost.seconds(work, begun) <= seconds:
        begun += 1
    assert cost.steps_begun_by(work, seconds) == begun
