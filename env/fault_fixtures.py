"""pytest fixtures for tests with faults on real jails. They need pytest-asyncio. In a conftest.py:

pytest_plugins = ["env.fault_fixtures"]
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest_asyncio

from env.faults import FaultPlan, FaultyEnvironment
from env.host_state import HostState
from env.tool_call import Limits


@pytest_asyncio.fixture
async def faulty_environment() -> AsyncIterator[Callable[..., FaultyEnvironment]]:
    """Makes environments that fail as a plan says: `environment = faulty_environment(plan, limits)`.

    They are closed at the end of the test, which fails if a process, mount, cgroup or descriptor is left then.
    """
    before = HostState.now()
    made: list[FaultyEnvironment] = []

    def make(plan: FaultPlan, limits: Limits | None = None, *, cores: int = 2, workers: int = 4) -> FaultyEnvironment:
        environment = FaultyEnvironment(plan, limits, cores=cores, workers=workers)
        made.append(environment)
        return environment

    yield make
    for environment in made:
        await environment.close()
    left = before.differences(HostState.now())
    assert not left, f"the sandbox left something behind: {left}"
