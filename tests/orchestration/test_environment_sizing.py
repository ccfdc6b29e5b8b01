"""Sizing of environments: the real scheduler on a virtual clock queues as queueing theory says that it must."""

import heapq
import json
import math
import random
from pathlib import Path

import pytest
import tomli_w
from typer.testing import CliRunner

from orchestration.cli import app
from orchestration.environment_sizing import latencies, service_times, size
from orchestration.recipe import RecipeError
from tests.orchestration.small_recipe import small_recipe


def erlang_c(servers: int, load: float) -> float:
    """Chance that a call has to wait in M/M/c, `load` = arrival rate times mean service time (Erlang, 1917)."""
    waiting = load**servers / math.factorial(servers) * servers / (servers - load)
    return waiting / (sum(load**k / math.factorial(k) for k in range(servers)) + waiting)


def traffic(count: int, load: float, service: float, seed: int) -> list[tuple[float, float]]:
    """Poisson arrivals, exponential service times."""
    rng, at, calls = random.Random(seed), 0.0, []
    for _ in range(count):
        at += rng.expovariate(load / service)
        calls.append((at, rng.expovariate(1 / service)))
    return calls


@pytest.mark.parametrize("cores, load", [(1, 0.4), (4, 2.4)])
def test_the_environments_scheduler_waits_as_erlang_says(cores: int, load: float) -> None:
    calls = traffic(8000, load, 0.05, seed=cores)
    took = latencies(calls, environments=1, cores=cores)
    waited = [each - seconds for each, (_, seconds) in zip(took, calls, strict=True)]
    expected = erlang_c(cores, load) * 0.05 / (cores - load)
    assert sum(waited) / len(waited) == pytest.approx(expected, rel=0.12)
    assert sum(wait > 1e-6 for wait in waited) / len(waited) == pytest.approx(erlang_c(cores, load), abs=0.02)


def test_calls_wait_for_the_core_that_comes_free_first() -> None:
    """Against Kiefer and Wolfowitz's recursion on the same calls, one by one."""
    calls, free = traffic(2000, 3.6, 0.05, seed=1), [0.0] * 4
    expected = []
    for arrival, seconds in calls:
        end = max(arrival, heapq.heappop(free)) + seconds
        heapq.heappush(free, end)
        expected.append(end - arrival)
    assert latencies(calls, environments=1, cores=4) == pytest.approx(expected, abs=1e-6)


def test_a_burst_of_equal_calls_is_served_in_waves() -> None:
    took = latencies([(0.0, 0.5)] * 12, environments=2, cores=3)
    assert sorted(took) == pytest.approx([0.5] * 6 + [1.0] * 6)


def test_the_cores_that_are_found_are_enough_and_hardly_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestration.environment_sizing.BURST", 3000)
    monkeypatch.setattr("orchestration.environment_sizing.STEADY_CALLS", 2000)
    found = size({"short": 0.01, "long": 0.03}, environments=2, calls_per_s=900.0)
    assert found.burst.latency.mean_s <= 0.3 and found.steady.latency.mean_s <= 0.3
    assert found.burst.cores == pytest.approx(3000 * 0.02 / 0.6, rel=0.08), "half of the waves, on average"
    rng = random.Random(0)
    fewer = [(0.0, rng.choice([0.01, 0.03])) for _ in range(3000)]
    assert sum(latencies(fewer, 2, found.burst.cores // 2 - 2)) / 3000 > 0.3
    assert 16 <= found.steady.cores <= 22, "900 calls a second hold 18 cores; this many calls can pile up for a while"


def test_calls_longer_than_the_goal_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"holds a core for 0\.400 s on average: no number of cores"):
        size({"slow": 0.4}, environments=1, calls_per_s=1.0)


@pytest.mark.parametrize("text", [None, "no json", "{}", '{"kinds": {}}', '{"kinds": {"a": {"core_seconds": 0}}}'])
def test_a_file_without_service_times_is_refused_by_name(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "tools.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(RecipeError, match=r"--tools .*tools\.json"):
        service_times(path)


def test_simulate_prints_the_cores_that_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestration.environment_sizing.BURST", 3000)
    monkeypatch.setattr("orchestration.environment_sizing.STEADY_CALLS", 1000)
    recipe, tools = tmp_path / "small.toml", tmp_path / "tools.json"
    recipe.write_text(tomli_w.dumps(small_recipe().model_dump(mode="json", exclude_none=True, exclude_defaults=True)))
    tools.write_text(json.dumps({"kinds": {"trivial": {"core_seconds": 0.005}, "numpy": {"core_seconds": 0.015}}}))
    done = CliRunner().invoke(app, ["simulate", str(recipe), "--tools", str(tools), "--page", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    cores, figures = found["environment_cores"], found["strategies"]["worst_case"]
    assert cores["burst"]["calls"] == 3000
    assert cores["burst"]["cores"] == pytest.approx(3000 * 0.01 / 0.6, rel=0.08)
    assert cores["steady"]["calls_per_s"] == pytest.approx(figures["tool_calls"] / figures["makespan_s"])
    assert cores["steady"]["cores"] == 2, "each of the recipe's two environments has at least one"
