"""Chance needs evidence: two executions that differ, or a difference of a kind that no two executions share."""

from __future__ import annotations

import pytest

from env.tool_call import ToolResult
from orchestration.replay.nondeterminism import cause_of_difference, names_in


def printed(stdout: str, stderr: str = "") -> ToolResult:
    return ToolResult(id="a", status="success", stdout=stdout, stderr=stderr, exit_code=0)


@pytest.mark.parametrize(
    ("code", "stored", "now", "cause"),
    [
        ("print(object())", "<object object at 0x7f12ab34cd50>", "<object object at 0x7fe2ab34cd50>", "addresses"),
        ("print(x)", "at 2026-11-29 12:00:01.5", "at 2026-11-30 09:13:44.1", "times"),
        ("print(x)", "12:00:01", "9:13:44", "times"),
        ("print(u)", f"{'a' * 8}-1234-1234-1234-{'b' * 12}", f"{'c' * 8}-1234-1234-1234-{'d' * 12}", "unique ids"),
        ("print(f)", "/tmp/tmpabcd1234", "/tmp/tmp_x2y9z8w", "temporary names"),
        ("import datetime\nprint(datetime.date.today().day)", "29", "30", "clock"),
        ("import datetime\nprint(datetime.date.today())\nprint(1)", "2026-11-29\n1", "2026-11-30\n2", "clock"),
        ("print({str(a), 'b'})", "{'a', 'b'}", "{'b', 'a'}", "order"),
        ("print(1)", "29", "30", None),
        ("import datetime\nprint('a')", "a", "b", None),
        ("print('ab')", "a b", "b a", None),
        ("import random\nrandom.seed(1)\nprint(random.random())", "0.13", "0.14", None),
    ],
)
def test_causes(code: str, stored: str, now: str, cause: str | None) -> None:
    assert cause_of_difference(code, printed(stored), printed(now), printed(now)) == cause


def test_two_executions_that_differ_are_evidence_enough() -> None:
    cause = cause_of_difference("print(1)", printed("1"), printed("2"), printed("3"))
    assert cause == "two executions differ"


def test_a_difference_in_standard_error_counts() -> None:
    assert cause_of_difference("x", printed("1", "a"), printed("1", "b"), printed("1", "b")) is None


def test_names_are_found_in_what_parses_and_in_what_does_not() -> None:
    assert names_in("import os.path as p\nfrom time import sleep\n{1}\np.join(a)") >= {
        "os", "time", "sleep", "set", "join", "a", "p",
    }  # fmt: skip
    assert {"time", "sleep"} <= names_in("import time; time.sleep(1")
