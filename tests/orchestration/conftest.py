"""Whatever these tests rehearse, by the command line too, is rehearsed twice and must be the same both times."""

from __future__ import annotations

import pytest

from orchestration import simulate, simulation
from orchestration.replay import schedule


@pytest.fixture(autouse=True)
def _rehearsed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    for user in (simulation, simulate, schedule):
        monkeypatch.setattr(user, "rehearse", simulation.rehearse_twice)
