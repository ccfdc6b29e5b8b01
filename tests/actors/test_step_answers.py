"""Steps are done once however often they are asked for, and few of them are remembered."""

from __future__ import annotations

import asyncio

import pytest

from actors.step_answers import KEPT, StepAnswers


class Work:
    """Steps that end when they are told to."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.may_end = asyncio.Event()
        self.fails = False

    async def step(self, step_id: str) -> str:
        self.done.append(step_id)
        await self.may_end.wait()
        if self.fails:
            raise ValueError(step_id)
        return f"{step_id}, time {self.done.count(step_id)}"


async def test_of_many_steps_the_last_ones_are_kept_and_repeats_of_them_are_not_done_again() -> None:
    work, answers = Work(), StepAnswers[str]()
    work.may_end.set()
    for number in range(10 * KEPT):
        name = f"rl/{number}"
        assert await answers.once(name, lambda name=name: work.step(name)) == f"{name}, time 1"
        assert len(answers) <= KEPT
    last = f"rl/{10 * KEPT - 1}"
    assert await answers.once(last, lambda: work.step(last)) == f"{last}, time 1"
    assert work.done.count(last) == 1


async def test_a_step_at_work_is_kept_however_many_come_after_it() -> None:
    work, quick, answers = Work(), Work(), StepAnswers[str]()
    quick.may_end.set()
    slow = asyncio.ensure_future(answers.once("slow", lambda: work.step("slow")))
    await asyncio.sleep(0)
    for number in range(2 * KEPT):
        await answers.once(str(number), lambda number=number: quick.step(str(number)))
    slow.cancel()  # whoever asked first is gone
    again = asyncio.ensure_future(answers.once("slow", lambda: work.step("slow")))
    work.may_end.set()
    assert await again == "slow, time 1"


async def test_a_step_that_failed_may_be_tried_again() -> None:
    work, answers = Work(), StepAnswers[str]()
    work.may_end.set()
    work.fails = True
    with pytest.raises(ValueError):
        await answers.once("a", lambda: work.step("a"))
    assert len(answers) == 0
    work.fails = False
    assert await answers.once("a", lambda: work.step("a")) == "a, time 2"


async def test_a_step_that_was_at_work_when_all_was_taken_back_leaves_its_successor_alone() -> None:
    work, answers = Work(), StepAnswers[str]()
    work.fails = True
    first = asyncio.ensure_future(answers.once("a", lambda: work.step("a")))
    await asyncio.sleep(0)
    answers.clear()
    again = Work()
    second = asyncio.ensure_future(answers.once("a", lambda: again.step("a")))
    await asyncio.sleep(0)
    work.may_end.set()
    with pytest.raises(ValueError):
        await first
    assert len(answers) == 1
    again.may_end.set()
    assert await second == "a, time 1"
