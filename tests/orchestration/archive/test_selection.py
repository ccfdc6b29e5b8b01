"""Conditions select what they say, and wrong ones are refused with what would be right."""

from __future__ import annotations

import pytest

from actors.storage.index import IndexRow, row_of
from orchestration.archive.selection import page_of, parse_condition, select
from tests.actors.storage.samples import random_trajectory

TRAJECTORIES = [random_trajectory(serial, stage=stage) for stage in ("rl-1", "rl-2") for serial in range(60)]
ROWS = [row_of(each, segment=0, offset=n, end=n + 1, checksum=n) for n, each in enumerate(TRAJECTORIES)]


def chosen(*conditions: str) -> list[IndexRow]:
    return select(ROWS, [parse_condition(each) for each in conditions])


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("step=2", lambda t: t.step == 2),
        ("step=1..2", lambda t: t.step in (1, 2)),
        ("step=2..", lambda t: t.step >= 2),
        ("reward=..0.5", lambda t: t.reward <= 0.5),
        ("length=30..60", lambda t: 30 <= t.response_tokens <= 60),
        ("errors=1..", lambda t: t.tool_errors >= 1),
        ("stage=rl-2", lambda t: t.stage == "rl-2"),
        ("stage=rl-*", lambda t: True),
        ("problem=*/7,*/8", lambda t: t.problem.id in ("arithmetic/7", "arithmetic/8")),
        ("family=sums", lambda t: True),
        ("verdict=wrong", lambda t: not t.verdict.correct),
        ("status=timeout", lambda t: any(call.result.status == "timeout" for call in t.calls)),
        ("status=answered", lambda t: t.finish == "answered"),
    ],
)
def test_a_condition_selects_what_it_says(condition: str, expected) -> None:
    ids = [each.id for each in TRAJECTORIES if expected(each)]
    assert ids and [row.id for row in chosen(condition)] == ids


def test_all_conditions_must_hold() -> None:
    both = chosen("stage=rl-1", "errors=1..")
    assert both == [row for row in chosen("stage=rl-1") if row in chosen("errors=1..")]
    assert 0 < len(both) < len(chosen("stage=rl-1"))


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("step", "is no condition; write FIELD=VALUE"),
        ("step=", "is no condition"),
        ("colour=red", r"there is no field 'colour' to select by; fields are step, .*status"),
        ("step=two", "step=two is no number and no range"),
        ("step=5..3", "step=5..3 selects nothing"),
        ("step=..", "selects nothing"),
        ("reward=nan", "selects nothing"),
    ],
)
def test_a_condition_that_makes_no_sense_is_refused(condition: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_condition(condition)


def test_sorting_keeps_equal_rows_in_their_order() -> None:
    by_reward = select(ROWS, [], "reward", reverse=True)
    assert [row.reward for row in by_reward] == sorted((row.reward for row in ROWS), reverse=True)
    right = [row.id for row in by_reward if row.reward == 1.0]
    assert right == [row.id for row in ROWS if row.reward == 1.0]
    assert [row.stage for row in select(ROWS, [], "stage")] == ["rl-1"] * 60 + ["rl-2"] * 60
    with pytest.raises(ValueError, match="no field 'colour' to sort by"):
        select(ROWS, [], "colour")


def test_pages_hold_every_row_once() -> None:
    pages = [page_of(ROWS, number, 50) for number in (1, 2, 3)]
    assert [row for page in pages for row in page.rows] == ROWS
    assert [(page.number, page.pages, page.first, len(page.rows)) for page in pages] == [
        (1, 3, 0, 50),
        (2, 3, 50, 50),
        (3, 3, 100, 20),
    ]
    assert page_of(ROWS, 99, 50) == pages[2]
    assert page_of([], 1, 50) == (1, 1, 0, [])
