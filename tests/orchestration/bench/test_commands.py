"""`greenroom bench`: what can't be measured is refused before anything is started."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from orchestration.cli import app


@pytest.mark.parametrize(
    ("command", "option", "value"),
    [
        ("mailbox", "--seconds", "nan"),
        ("mailbox", "--seconds", "inf"),
        ("mailbox", "--in-flight", "0"),
        ("burst", "--calls", "0"),
        ("burst", "--environments", "0"),
        ("burst", "--kill-every", "-1"),
        ("tools", "--seconds", "0"),
        ("tools", "--rounds", "0"),
        ("tools", "--concurrency", "0"),
        ("learner", "--threads", "0"),
        ("learner", "--rounds", "-1"),
    ],
)
def test_what_cannot_be_measured_is_refused(command: str, option: str, value: str) -> None:
    done = CliRunner().invoke(app, ["bench", command, option, value])
    assert done.exit_code == 2 and option in done.stderr and "Traceback" not in done.output
