"""No number of the attack suite is left out, and each is where docs/attack-suite.md says."""

from __future__ import annotations

import re
from pathlib import Path

from tests.env import (
    test_attacks_by_escape,
    test_attacks_by_output_and_input,
    test_attacks_by_processes_and_exits,
    test_attacks_on_files,
    test_attacks_on_secrets_and_neighbours,
    test_attacks_on_the_service,
    test_attacks_on_time_and_memory,
)

OF_PROGRAMS = (
    test_attacks_by_escape,
    test_attacks_by_output_and_input,
    test_attacks_by_processes_and_exits,
    test_attacks_on_files,
    test_attacks_on_secrets_and_neighbours,
    test_attacks_on_time_and_memory,
)
PAGE = Path(__file__).parents[2] / "docs" / "attack-suite.md"


def numbers_in_ids(path: str) -> set[int]:
    return {int(number) for number in re.findall(r'"(\d\d)-[\w-]+"', Path(path).read_text())}


def test_every_number_from_1_to_58_has_a_test():
    seen = {attack.number for module in OF_PROGRAMS for attack in module.ATTACKS}
    seen |= numbers_in_ids(str(test_attacks_on_the_service.__file__))
    assert seen == set(range(1, 59))


def test_names_of_attacks_are_unique_within_a_number():
    names = [(attack.number, attack.name) for module in OF_PROGRAMS for attack in module.ATTACKS]
    assert len(names) == len(set(names))


def test_the_page_tells_of_every_number():
    told: set[int] = set()
    for row in re.findall(r"^\| ([\d, to]+) \|", PAGE.read_text(), re.MULTILINE):
        for part in row.split(","):
            first, _, last = part.partition(" to ")
            told |= set(range(int(first), int(last or first) + 1))
    assert told == set(range(1, 59))
