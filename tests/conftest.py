"""One Ray for the whole session: starting one takes longer than most tests.

Ray's own processes are children of this one. The tests of `env` look at (and kill) every child of this process, so they
come first, while there is none but theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from actors.system.local_ray import LocalRay
    from actors.system.ray_stage import RayStage

pytest_plugins = ["env.fault_fixtures", "actors.system.virtual_fixtures"]  # as a user's own conftest.py would say it

# How long an example takes says something about the machine, not about the code.
settings.register_profile("greenroom", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("greenroom")

_ENV = Path(__file__).parent / "env"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.path.is_relative_to(_ENV))  # a stable sort: the order is otherwise kept


@pytest.fixture(scope="session")
def local_ray() -> Iterator[LocalRay]:
    """A real local Ray with 16 CPUs on its books, so that no test waits for another's."""
    from actors.system.local_ray import LocalRay

    with LocalRay(cpus=16) as ray:
        yield ray


@pytest.fixture(scope="session")
def ray_stage_factory(local_ray: LocalRay) -> Callable[..., RayStage]:
    """Makes stages on the session's Ray: `async with ray_stage_factory() as stage`. Takes what `RayStage` takes."""
    from actors.system.ray_stage import RayStage

    def make(**options: Any) -> RayStage:
        return RayStage(**{"seed": 0, **options})

    return make
