"""A process allows itself the descriptors that many workers and connections need."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from env import preflight
from env.descriptors import ENOUGH, allow_descriptors
from env.preflight import check_host


@pytest.fixture
def usual_limit() -> Iterator[int]:
    """The soft limit that a login has; and what it can be raised to."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert before[1] > 1024, "this host allows no more anyway"
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    yield min(before[1], ENOUGH)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_soft_limit_is_raised_and_never_lowered(usual_limit: int):
    assert allow_descriptors() == usual_limit == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert allow_descriptors() == usual_limit


def test_interpreters_allow_themselves_what_their_workers_need(usual_limit: int):
    assert check_host() == []
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == usual_limit


def test_a_host_that_allows_too_few_for_a_jail_is_told_how_to_allow_more(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(preflight, "most_descriptors", lambda: 500)
    problem, *_ = check_host()
    assert "600" in problem.missing and "500" in problem.missing and "ulimit -Hn" in problem.fix
    assert check_host(isolation="jail-per-call") == []
