"""Golds with answers that are right and answers that are not, by kind: `verify_cases.jsonl` beside this file.

Among them are cases that were reported against other graders (in the issue trackers of math-verify, lm-evaluation-
harness and open-r1) or found in verl's and rStar's scorers; the rest are of the same kinds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple


class Case(NamedTuple):
    kind: str
    gold: str
    right: list[str]
    not_right: list[str]

    def verdicts(self) -> list[tuple[str, bool]]:
        """Each answer, and whether it is right."""
        return [(answer, True) for answer in self.right] + [(answer, False) for answer in self.not_right]


def read_cases() -> list[Case]:
    lines = Path(__file__).with_name("verify_cases.jsonl").read_text(encoding="utf-8").splitlines()
    return [Case(**json.loads(line)) for line in lines]


CASES = read_cases()
