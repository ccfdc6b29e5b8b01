"""Whatever these tests rehearse, by the command line too, is rehearsed twice and must be the same both times.

That is seen to in this process: commands use no others here unless they are told to.
"""

from __future__ import annotations

import pytest

from orchestration import cli, drill_commands, rehearsing, simulation
from orchestration.replay import commands, schedule


@pytest.fixture(autouse=True)
def _rehearsed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    for user in (simulation, rehearsing, schedule):
        monkeypatch.setattr(user, "rehearse", simulation.rehearse_twice)
    for user in (cli, drill_commands, commands):
        monkeypatch.setattr(user, "usable_cores", lambda: 1)
