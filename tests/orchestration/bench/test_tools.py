"""The benchmark of tools runs real calls and real processes, and refuses figures of unprotected calls."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from env import cgroup_hierarchy, image
from env.isolation import NO_CGROUP
from env.zygote_call import Confirmed
from orchestration.bench import commands
from orchestration.bench.tools import KINDS, UnprotectedCall, bench_tools, demand_protection
from orchestration.cli import main

FIVE = Confirmed(calls=5, init=5, own_user=5, seccomp=5, no_rights=5, memory_limit=5)


@pytest.mark.slow
async def test_both_sides_are_measured_for_every_kind_and_every_call_is_confirmed():
    weaker = os.geteuid() != 0
    said: list[str] = []
    figures = await bench_tools(seconds=0.2, rounds=1, concurrency=1, allow_weaker=weaker, say=said.append)
    assert list(figures.kinds) == list(KINDS) == ["trivial", "numpy", "sympy"]
    assert [line.split(":")[0] for line in said] == list(KINDS), "what is measured is told before it is"
    for kind in figures.kinds.values():
        assert kind.ours_calls >= 1 and kind.spawn_calls >= 1
        assert kind.ratio == pytest.approx(kind.ours_per_s / kind.spawn_per_s)
    assert bool(figures.weaknesses) == weaker and (weaker or len(set(figures.confirmed.values())) == 1)
    assert figures.confirmed["calls"] >= sum(kind.ours_calls for kind in figures.kinds.values())


def test_fully_protected_calls_are_accepted():
    demand_protection(asdict(FIVE))


@pytest.mark.parametrize("protection", ["init", "own_user", "seccomp", "no_rights", "memory_limit"])
def test_one_unprotected_call_voids_the_figures(protection: str):
    with pytest.raises(UnprotectedCall, match=protection):
        demand_protection(asdict(replace(FIVE, **{protection: 4})))


def test_no_calls_void_the_figures():
    with pytest.raises(UnprotectedCall):
        demand_protection(asdict(Confirmed()))


def weak_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup_hierarchy, "find_hierarchy", lambda: None)


@pytest.mark.parametrize("what", ["tools", "burst"])
def test_a_weak_host_is_refused_in_a_sentence_before_anything_is_measured(
    what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    weak_host(monkeypatch)
    monkeypatch.setattr("orchestration.bench.tools._keep_running", None)  # what measures
    with pytest.raises(SystemExit) as end:
        {"tools": commands.bench_tools, "burst": commands.bench_burst}[what]()
    said = capsys.readouterr().err
    assert end.value.code == 1 and said.startswith("not measured: this host isolates less")
    assert NO_CGROUP in said and "--allow-weaker" in said


@pytest.mark.slow
async def test_a_weak_host_is_measured_if_wanted_and_the_figures_say_so(monkeypatch: pytest.MonkeyPatch):
    weak_host(monkeypatch)
    figures = await bench_tools(seconds=0.2, rounds=1, concurrency=1, allow_weaker=True)
    assert figures.weaknesses[0].startswith(NO_CGROUP) and figures.kinds["trivial"].ratio > 0
    assert figures.confirmed["init"] == figures.confirmed["calls"] > figures.confirmed["memory_limit"]


def test_a_sandbox_that_is_not_built_is_told_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(image, "PROJECT", tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "elsewhere" / ".venv"))
    monkeypatch.setattr(sys, "argv", ["greenroom", "bench", "tools"])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err.replace("\n", " ")
    assert ended.value.code == 2 and "error: the sandbox's libraries are not built in" in said
