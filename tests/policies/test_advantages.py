"""Group advantages against numpy in float64, by every rule."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.advantages import carries_signal, group_advantages
from policies.options import AdvantageRule
from tests.support.objective_reference import advantages

RULES: list[AdvantageRule] = ["standardised", "centred", "leave_one_out"]
REWARDS = st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=64)


@given(rewards=st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=64) | REWARDS)
def test_advantages_are_those_of_numpy(rewards) -> None:
    values = np.array(rewards, dtype=np.float64)
    expected = (
        (values - values.mean()) / (values.std(ddof=0) + 1e-6) if len(set(rewards)) > 1 else np.zeros(len(rewards))
    )
    np.testing.assert_allclose(group_advantages(rewards), expected, rtol=1e-7, atol=1e-7)


@given(rewards=st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=64) | REWARDS)
def test_centred_and_leave_one_out_advantages_are_those_of_numpy(rewards) -> None:
    for rule in ("centred", "leave_one_out"):
        np.testing.assert_allclose(group_advantages(rewards, rule), advantages(rewards, rule), rtol=1e-7, atol=1e-6)


@given(reward=st.floats(-1e6, 1e6), size=st.integers(0, 40), rule=st.sampled_from(RULES))
def test_equal_rewards_give_no_advantage_and_carry_no_signal(reward: float, size: int, rule: AdvantageRule) -> None:
    assert group_advantages([reward] * size, rule) == [0.0] * size
    assert not carries_signal([reward] * size)


def test_one_success_among_failures_stands_out() -> None:
    first, *others = group_advantages([1.0] + [0.0] * 15)
    assert first == pytest.approx(15**0.5, rel=1e-4)
    assert first + sum(others) == pytest.approx(0.0, abs=1e-9)
    assert group_advantages([1.0] + [0.0] * 15, "leave_one_out")[:2] == pytest.approx([1.0, -1 / 15])
    assert carries_signal([1.0] + [0.0] * 15)


def test_rewards_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        group_advantages([0.0, float("nan")])
