"""One Ray for the whole session: starting one takes longer than most tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from actors.system.ray_stage import LocalRay, RayStage


@pytest.fixture(scope="session")
def local_ray() -> Iterator[LocalRay]:
    """A real local Ray with 16 CPUs on its books, so that no test waits for another's."""
    from actors.system.ray_stage import LocalRay

    with LocalRay(cpus=16) as ray:
        yield ray


@pytest.fixture(scope="session")
def ray_stage_factory(local_ray: LocalRay) -> Callable[..., RayStage]:
    """Makes stages on the session's Ray: `async with ray_stage_factory() as stage`. Takes what `RayStage` takes."""
    from actors.system.ray_stage import RayStage

    def make(**options: Any) -> RayStage:
        return RayStage(**{"seed": 0, **options})

    return make
