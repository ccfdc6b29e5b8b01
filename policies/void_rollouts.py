"""When so many rollouts are lost that the run's figures would mean nothing.

Invariant: a few that are lost, as when a jail is killed now and then, never end a run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from policies.trajectory import Trajectory

LEAST = 4


def too_many(lost: int, of: int) -> bool:
    """Whether rollouts should not go on when `lost` of them were: at least `LEAST`, and more than half."""
    return lost >= LEAST and 2 * lost > of


def reason_to_stop(trajectories: Sequence[Trajectory]) -> str:
    """Why rollouts with these outcomes should not go on; empty if they may.

    They should not when the sandbox failed `too_many` of those that ran any code.
    """
    with_code = [each for each in trajectories if each.calls]
    void = [each for each in with_code if each.finish == "sandbox_failure"]
    if not too_many(len(void), len(with_code)):
        return ""
    reasons = Counter(
        call.result.reason for each in void for call in each.calls if call.result.status == "sandbox_failure"
    )
    most_common = next((reason for reason, _ in reasons.most_common(1)), "no reason is known")
    return (
        f"the sandbox failed {len(void)} of {len(with_code)} rollouts that ran code, each time after trying elsewhere; "
        f"most often: {most_common}"
    )
