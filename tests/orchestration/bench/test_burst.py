"""The burst measurement counts what it says it counts; and a small burst survives having its jails killed."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.system.local_ray import LocalRay
from env.tool_call import ToolResult
from orchestration.bench.burst import Ledger, bench_burst
from orchestration.bench.mixed_calls import MIX, mixed_calls


def right(each) -> ToolResult:
    return ToolResult(id=each.call.id, status=each.status, stdout=each.stdout, stderr=each.in_stderr)


def test_every_twenty_calls_hold_each_kind_in_its_share_and_every_call_prints_its_own_id():
    calls = list(mixed_calls(60, seed=1))
    for start in (0, 20, 40):
        assert Counter(each.kind for each in calls[start : start + 20]) == MIX
    assert len({each.call.id for each in calls}) == 60
    for each in calls:
        assert each.stdout.startswith(f"{each.call.id}") and f"'{each.call.id}'" in each.call.code
    assert calls == list(mixed_calls(60, seed=1)) != list(mixed_calls(60, seed=2))


@given(st.lists(st.sampled_from(["right", "wrong", "failed", "another's", "twice", "none"]), max_size=40))
def test_the_ledger_tells_answered_lost_doubled_and_wrong_apart(what: list[str]):
    calls = list(mixed_calls(len(what) + 1))
    expected, stranger = calls[:-1], calls[-1]
    ledger = Ledger(expected)
    for each, happened in zip(expected, what, strict=True):
        match happened:
            case "right" | "twice":
                for _ in range(2 if happened == "twice" else 1):
                    ledger.enter(each, right(each), 1.0)
            case "wrong":
                ledger.enter(each, right(each).model_copy(update={"stdout": "something else"}), 1.0)
            case "failed":
                ledger.enter(each, ToolResult(id=each.call.id, status="sandbox_failure"), 1.0)
            case "another's":
                ledger.enter(each, right(stranger), 1.0)
    count = Counter(what)
    assert ledger.answered == count["right"] + count["twice"] + count["wrong"]
    assert ledger.duplicated == count["twice"] + max(0, count["another's"] - 1)
    assert ledger.wrong == count["wrong"] + count["another's"]
    assert ledger.failed == count["failed"]


@pytest.mark.slow
async def test_a_burst_with_jails_killed_all_along_loses_nothing(local_ray: LocalRay):
    weaker = os.geteuid() != 0
    figures = await bench_burst(calls=60, environments=2, kill_every_s=0.4, mix_seconds=1.0, allow_weaker=weaker)
    assert figures.flawless and bool(figures.weaknesses) == weaker, figures
    assert sum(figures.killed.values()) > 0 and sum(figures.kinds.values()) == figures.answered == 60
    assert figures.latency_s.p50 <= figures.latency_s.p99 <= figures.latency_s.max <= figures.seconds
    assert figures.calls_per_s == pytest.approx(60 / figures.seconds)
    assert figures.ratio == pytest.approx(figures.calls_per_s / figures.bench_tools_mix_per_s)
