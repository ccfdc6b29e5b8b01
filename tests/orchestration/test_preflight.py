"""What a recipe is said to need."""

from __future__ import annotations

from pathlib import Path

from env.zygotes import JAIL_BYTES, LIBRARY_BYTES, MOST_ZYGOTES
from orchestration.preflight import plan
from orchestration.recipe_loading import load_recipe
from tests.orchestration.test_recipe import QUICKSTART


def _environments(tmp_path: Path, *overrides: str) -> int:
    planned = plan(load_recipe(QUICKSTART, ["environments.count=1", "environments.workers=3", *overrides]), tmp_path)
    (need,) = [need for need in planned.needs if need.actor == "environment"]
    return need.memory_bytes


def test_zygotes_count_for_each_worker_as_many_as_the_libraries_allow(tmp_path: Path):
    without = _environments(tmp_path, "environments.isolation=jail-per-call")
    for libraries, zygotes in (("[]", 1), ('["numpy", "sympy"]', 4), ('["a", "b", "c", "d", "e"]', MOST_ZYGOTES)):
        grown = _environments(tmp_path, f"environments.preloaded={libraries}") - without
        assert grown == 3 * (JAIL_BYTES + (zygotes - 1) * LIBRARY_BYTES)
