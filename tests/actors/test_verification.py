"""Verification in processes: hanging comparisons end, the next one is right, and nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from actors.verification import Verifier, VerifierBroken, close_verifier, verify
from tests.policies.answers.cases import CASES

HANGS = "9^{9^{9^{9}}}"
"""Raised to its last digit by whoever evaluates it."""


def answer(text: str) -> str:
    return f"so</reason><answer>\\boxed{{{text}}}</answer>"


def workers(pid: int | None = None) -> list[psutil.Process]:
    children = [child for child in psutil.Process(pid).children() if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in children if "actors.verification_worker" in child.cmdline()]


@pytest.fixture(scope="module", autouse=True)
def nothing_left_behind() -> Iterator[None]:
    yield
    close_verifier()
    assert workers() == []


@pytest.fixture
async def verifier() -> AsyncIterator[Verifier]:
    close_verifier()  # the workers that these tests see, and kill, are their own
    verifier = Verifier(workers=2, limit_s=2.0)
    yield verifier
    await verifier.close()


@pytest.mark.parametrize(
    ("response", "gold", "require_tag", "reason"),
    [
        (answer("x < 3"), "(-\\infty, 3)", True, "right"),
        (answer("x \\le 3"), "(-\\infty, 3)", True, "wrong"),
        (answer("x <"), "(-\\infty, 3)", True, "unparsable"),
        ("\\boxed{\\sqrt{12}}", "2\\sqrt{3}", True, "no_answer"),
        ("\\boxed{\\sqrt{12}}", "2\\sqrt{3}", False, "right"),
        ("\\boxed{5}, \\boxed{3}", "3, 5", False, "right"),
        ("<tool_response>\\boxed{24}</tool_response> I give up", "24", False, "no_answer"),
        (answer("004"), "4", True, "right"),
    ],
)
def test_verify_blocks_until_the_verdict_is_there(response: str, gold: str, require_tag: bool, reason: str) -> None:
    verdict = verify(response, gold, require_tag)
    assert (verdict.correct, verdict.reason) == (reason == "right", reason)


def test_an_empty_gold_is_refused() -> None:
    with pytest.raises(ValueError, match="gold answer is empty"):
        verify(answer("5"), " ")


def test_verify_may_be_called_from_many_threads() -> None:
    golds = ["2\\sqrt{3}", "3\\sqrt{2}"] * 10
    with ThreadPoolExecutor(8) as threads:
        verdicts = list(threads.map(lambda gold: verify(answer("\\sqrt{12}"), gold), golds))
    assert [verdict.correct for verdict in verdicts] == [True, False] * 10


async def test_a_hanging_comparison_is_answered_timed_out_and_the_next_one_is_right(verifier: Verifier) -> None:
    hanging = verifier.verify(answer(HANGS), "2\\sqrt{3}")
    others = [verifier.verify(answer("\\sqrt{12}"), "2\\sqrt{3}") for _ in range(4)]
    verdicts = await asyncio.gather(hanging, *others)
    assert [verdict.reason for verdict in verdicts] == ["timed_out"] + ["right"] * 4
    assert not verdicts[0].correct and verdicts[0].extracted == HANGS
    assert (await verifier.verify(answer("\\sqrt{12}"), "2\\sqrt{3}")).correct


async def test_an_integer_needs_no_process(verifier: Verifier) -> None:
    before = workers()
    assert (await verifier.verify(answer("144"), "144")).correct
    assert workers() == before


@pytest.mark.slow
async def test_a_worker_that_is_killed_costs_no_verdict(verifier: Verifier) -> None:
    assert (await verifier.compare("\\sqrt{12}", "2\\sqrt{3}")).correct
    before = {worker.pid for worker in workers()}
    hanging = asyncio.create_task(verifier.compare(HANGS, "2\\sqrt{3}"))
    await asyncio.sleep(0.1)
    for worker in workers():
        worker.kill()
    assert (await verifier.compare("\\sqrt{12}", "2\\sqrt{3}")).correct
    assert (await hanging).reason == "timed_out", "it was tried again, and hung again"
    assert not before & {worker.pid for worker in workers()}


@pytest.mark.slow
async def test_a_worker_that_is_stopped_is_replaced(verifier: Verifier) -> None:
    assert (await verifier.compare("\\sqrt{12}", "2\\sqrt{3}")).correct
    known = {worker.pid for worker in workers()}
    for worker in workers():
        worker.suspend()
    assert (await verifier.compare("\\sqrt{12}", "2\\sqrt{3}")).reason == "timed_out"
    assert (await verifier.compare("\\sqrt{12}", "2\\sqrt{3}")).correct
    for worker in workers():
        worker.resume()
    assert {worker.pid for worker in workers()} != known


async def test_who_gives_up_leaves_no_process_at_work(verifier: Verifier) -> None:
    given_up = asyncio.create_task(verifier.compare(HANGS, "2\\sqrt{3}"))
    await asyncio.sleep(0)  # it runs up to its worker's start
    assert len(workers()) == 1
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    assert (await verifier.compare("\\sqrt{12}", "2\\sqrt{3}")).correct


async def test_a_worker_that_can_t_start_is_an_error_and_not_a_verdict() -> None:
    verifier = Verifier(memory_bytes=1 << 20)
    with pytest.raises(VerifierBroken, match="before it was ready"):
        await verifier.compare("\\sqrt{12}", "2\\sqrt{3}")
    await verifier.close()


@pytest.mark.slow
async def test_all_kinds_get_the_same_verdicts_in_a_worker() -> None:
    verifier = Verifier(workers=2)
    cases = [(case.gold, given, right) for case in CASES for given, right in case.verdicts()]
    verdicts = await asyncio.gather(*[verifier.verify(answer(given), gold) for gold, given, _ in cases])
    assert [(gold, given) for (gold, given, right), v in zip(cases, verdicts, strict=True) if v.correct != right] == []
    await verifier.close()


PARENT = """
import sys
from actors.verification import verify
print(verify("<answer>\\\\boxed{\\\\sqrt{12}}</answer>", "2\\\\sqrt{3}").reason, flush=True)
verify("<answer>\\\\boxed{9^{9^{9^{9}}}}</answer>", "2\\\\sqrt{3}")
"""


def test_workers_die_with_a_parent_that_is_killed() -> None:
    root = Path(__file__).parent.parent.parent
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT)], stdout=subprocess.PIPE, text=True, cwd=root
    ) as parent:
        assert parent.stdout is not None and parent.stdout.readline() == "right\n"
        (worker,) = workers(parent.pid)
        os.kill(parent.pid, signal.SIGKILL)
    gone, alive = psutil.wait_procs([worker], timeout=10)
    assert (len(gone), alive) == (1, [])


def test_verify_starts_anew_after_it_was_closed() -> None:
    assert verify(answer("\\sqrt{12}"), "2\\sqrt{3}").correct
    close_verifier()
    close_verifier()
    assert workers() == [] and "greenroom-verification" not in {thread.name for thread in threading.enumerate()}
    assert verify(answer("\\sqrt{12}"), "2\\sqrt{3}").correct
