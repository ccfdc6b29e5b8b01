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


def elsewhere(*modules: str, hash_seed: str) -> dict:
    """What another process sees, which imports these modules first."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.orchestration.rehearse_all", *modules],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow  # three processes that import everything, and rehearse 21 settings each
@pytest.mark.timeout(600)
def test_traces_are_the_same_in_other_processes_under_other_hash_seeds_after_other_imports() -> None:
    """Under every strategy, in the plain order, and in two others with faults."""
    here = elsewhere(hash_seed="0")
    assert len(here) == 7 * 3 and min(run["events"] for run in here.values()) > 300
    assert len({run["hash"] for run in here.values()}) >= 3 * 3, "settings differ in what happens"
    assert elsewhere("sqlite3", "xml.dom.minidom", "email.mime.text", hash_seed="random") == here
    assert elsewhere("decimal", "curses", hash_seed="77") == here


def trace(explore: int | None = None, **settings) -> tuple[str, int]:
    recipe = small_recipe().model_copy(update=settings)
    found = rehearse(Setting(recipe=recipe, stage="rl", balancer=recipe.balancer, explore=explore, contents=True))
    return found.trace_hash, found.events


def test_another_seed_or_another_order_gives_another_trace() -> None:
    traces = [trace(), trace(seed=4), trace(explore=1), trace(explore=2)]
    assert len(set(traces)) == 4
    assert traces == [trace(), trace(seed=4), trace(explore=1), trace(explore=2)]
