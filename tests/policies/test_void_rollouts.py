from __future__ import annotations

from env.tool_call import ToolCall, ToolResult
from policies.trajectory import CallRecord, Trajectory
from policies.void_rollouts import reason_to_stop
from tests.policies.test_trajectory import MODEL, PROMPT, trajectory


def rollout(index: int, *, void: bool) -> Trajectory:
    status, reason = ("sandbox_failure", "The zygote died.") if void else ("success", "")
    call = ToolCall(id=f"{index}#0", code="print(1)")
    record = CallRecord(turn=0, call=call, result=ToolResult(id=call.id, status=status, reason=reason))
    finish = "sandbox_failure" if void else "answered"
    return trajectory(PROMPT, MODEL, id=f"g/{index}", sample=index, finish=finish).model_copy(
        update={"calls": (record,)}
    )


def test_a_sandbox_that_fails_most_of_what_is_run_ends_the_run_and_says_why() -> None:
    assert "The zygote died." in reason_to_stop([rollout(index, void=index < 5) for index in range(8)])


def test_a_few_rollouts_that_the_sandbox_failed_end_nothing() -> None:
    assert reason_to_stop([rollout(index, void=index < 3) for index in range(3)]) == ""
    assert reason_to_stop([rollout(index, void=index < 8) for index in range(16)]) == ""
    assert reason_to_stop([]) == ""
