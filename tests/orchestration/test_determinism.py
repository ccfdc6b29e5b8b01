"""The same seed and plan give the same trace, byte for byte, wherever and whenever they are run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestration.simulation import Setting, rehearse
from tests.orchestration.small_recipe import small_recipe

ROOT = Path(__file__).parents[2]


def elsewhere(*arguments: str, hash_seed: str) -> dict:
    """What another process sees."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.orchestration.rehearse_one", *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow  # four processes that import everything
@pytest.mark.parametrize(("strategy", "explore", "faults"), [("predictive", "-", "-"), ("static", "5", "8")])
def test_a_trace_is_the_same_in_other_processes_under_other_hash_seeds_after_other_imports(
    strategy: str, explore: str, faults: str
) -> None:
    runs = [
        elsewhere(strategy, explore, faults, hash_seed="0"),
        elsewhere(strategy, explore, faults, hash_seed="77"),
        elsewhere(strategy, explore, faults, "sqlite3", "xml.dom.minidom", "email.mime.text", hash_seed="random"),
        elsewhere(strategy, explore, faults, "decimal", "curses", hash_seed="0"),
    ]
    assert all(run == runs[0] for run in runs)
    assert runs[0]["events"] > 300


def trace(explore: int | None = None, **settings) -> tuple[str, int]:
    recipe = small_recipe().model_copy(update=settings)
    found = rehearse(Setting(recipe=recipe, stage="rl", balancer=recipe.balancer, explore=explore, contents=True))
    return found.trace_hash, found.events


def test_another_seed_or_another_order_gives_another_trace() -> None:
    traces = [trace(), trace(seed=4), trace(explore=1), trace(explore=2)]
    assert len(set(traces)) == 4
    assert traces == [trace(), trace(seed=4), trace(explore=1), trace(explore=2)]
