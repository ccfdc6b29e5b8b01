"""What a recipe is said to need."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.tokenizer import PromptOptions
from env.zygotes import JAIL_BYTES, LIBRARY_BYTES, MOST_ZYGOTES
from orchestration import preflight
from orchestration.preflight import HostUnfit, check, plan, usable_chat_format
from orchestration.recipe_loading import load_recipe
from orchestration.tiny_model import write_tokenizer
from policies.chat_format import TemplateUnusable
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


def test_memory_that_a_container_is_not_given_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(preflight, "memory_left", lambda: 1 << 30)
    with pytest.raises(HostUnfit, match=r"GiB of memory, but 1\.0 GiB are free"):
        check(load_recipe(QUICKSTART), tmp_path)
    monkeypatch.setattr(preflight, "memory_left", lambda: None)
    assert plan(load_recipe(QUICKSTART), tmp_path).memory_available_bytes > 1 << 30


def test_a_run_that_may_not_have_its_threads_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Ray's processes would die while they start, and be started again until the patience with them ends."""
    monkeypatch.setattr(preflight, "tasks_left", lambda: 200)
    with pytest.raises(HostUnfit, match=r"processes and threads or more, but 200 are left .*; raise `ulimit -u`"):
        check(load_recipe(QUICKSTART), tmp_path)
    monkeypatch.setattr(preflight, "tasks_left", lambda: 100_000)
    assert check(load_recipe(QUICKSTART), tmp_path)


def test_a_chat_template_that_is_no_template_is_named_with_its_line(tmp_path: Path):
    write_tokenizer(tmp_path, 512)
    with (tmp_path / "chat_template.jinja").open("a") as template:
        template.write("\n{% if %}")
    with pytest.raises(TemplateUnusable, match=r"is no valid Jinja: line 2: .*; mend it"):
        usable_chat_format(tmp_path, PromptOptions())


def test_an_ordinary_user_s_limit_counts_with_what_that_user_runs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(preflight, "tasks_left", lambda: None)
    monkeypatch.setattr(preflight.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(preflight.resource, "getrlimit", lambda _: (1_000_000, 1_000_000))
    left = preflight._tasks_left()
    assert left is not None and 0 < left < 1_000_000
    monkeypatch.setattr(preflight.resource, "getrlimit", lambda _: (1, 1))
    assert preflight._tasks_left() == 0
