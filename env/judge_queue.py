"""The submissions that a tool server has taken and not answered yet: a bounded number.

Invariants:
- each submission gets exactly one answer; one that finds the queue full, waits too long, or is there when the server
  ends, is told `queue_timeout`, on which clients try again;
- whoever goes away (a cancelled `answer`) takes the program along.
"""

from __future__ import annotations

import asyncio
import time
import uuid

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from env.call_scheduler import Runs
from env.judge_models import LANGUAGE, RunResult, Submission, told
from env.tool_call import Limits, ToolCall, ToolResult, sandbox_failure

_NO_ECHO = "\nNone"
"""Our interpreters print the value of a last expression, as notebooks do; Code Judge runs scripts."""
_OVERHEAD_S = 5.0
"""For starting and ending a program, beyond its own limit (Code Judge's figure)."""
_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)


class JudgeMetrics:
    """Figures of a server for Prometheus, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        prefix = {"namespace": "greenroom", "subsystem": "tools", "registry": self.registry}
        self.submissions = Counter("submissions", "Submissions answered, by what came of them.", ["status"], **prefix)
        self.unserved = Counter(
            "unserved",
            "Submissions that did not run to an answer: queue_full, queue_timeout, closing, unknown_type, client_gone.",
            ["why"],
            **prefix,
        )
        self.open = Gauge("open_submissions", "Submissions waiting or running.", **prefix)
        self.seconds = Histogram("answer_seconds", "From arrival to answer.", buckets=_SECONDS, **prefix)
        self.cpu_seconds = Counter("cpu_seconds", "CPU time of programs.", **prefix)


class JudgeQueue:
    """Has submissions run.

    Args:
        runs: what runs them, in an order of its own: a `CallScheduler`, or environments elsewhere.
        limits: what each program gets.
        workers: how many programs `runs` runs at once.
        most_open: submissions that wait or run at one time; those beyond are refused.
    """

    def __init__(self, runs: Runs, limits: Limits, *, workers: int, most_open: int) -> None:
        self.metrics = JudgeMetrics()
        self.workers = workers
        self._runs, self._limits, self._most_open = runs, limits, most_open
        self._open: dict[asyncio.Task[ToolResult], None] = {}
        self._closing = False

    @property
    def waiting(self) -> int:
        return max(0, len(self._open) - self.workers)

    async def answer(self, submission: Submission, patience_s: float) -> RunResult:
        """The one answer to a submission, which may wait in the queue for `patience_s` seconds."""
        sub_id = submission.sub_id or str(uuid.uuid4())
        started = time.monotonic()
        answered = await self._answer(submission, sub_id, patience_s)
        self.metrics.submissions.labels(answered.status).inc()
        self.metrics.cpu_seconds.inc(answered.cpu_seconds)
        self.metrics.seconds.observe(time.monotonic() - started)
        return answered

    async def _answer(self, submission: Submission, sub_id: str, patience_s: float) -> RunResult:
        # An id of our own: those of two clients may be the same.
        call = ToolCall(
            id=f"judge-{uuid.uuid4()}",
            code=submission.solution + _NO_ECHO,
            input=submission.input or "",
            limits=self._limits,
        )
        if submission.type != LANGUAGE:
            self.metrics.unserved.labels("unknown_type").inc()
            reason = f"Programs of type {submission.type!r} are not run here; the type is {LANGUAGE!r}."
            return told(submission, sub_id, ToolResult(id=call.id, status="invalid_call", reason=reason))
        if self._closing:
            return self._not_now(submission, sub_id, call, "closing", "The server is ending; try again.")
        if len(self._open) >= self._most_open:
            reason = f"The queue is full ({self._most_open} submissions); try again."
            return self._not_now(submission, sub_id, call, "queue_full", reason)
        task = asyncio.get_running_loop().create_task(self._runs.run(call))
        self._open[task] = None
        self.metrics.open.inc()
        patience_s += self._limits.wall_seconds + _OVERHEAD_S
        try:
            await asyncio.wait({task}, timeout=patience_s)
        except asyncio.CancelledError:
            self.metrics.unserved.labels("client_gone").inc()
            raise
        finally:
            del self._open[task]
            self.metrics.open.dec()
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if not task.cancelled():
            result = task.result()
            if not (self._closing and result.status == "sandbox_failure"):
                return told(submission, sub_id, result)
        if self._closing:
            return self._not_now(submission, sub_id, call, "closing", "The server is ending; try again.")
        reason = f"Not done after {patience_s:g} seconds, of which it waited most; try again."
        return self._not_now(submission, sub_id, call, "queue_timeout", reason)

    def _not_now(self, submission: Submission, sub_id: str, call: ToolCall, why: str, reason: str) -> RunResult:
        self.metrics.unserved.labels(why).inc()
        return told(submission, sub_id, sandbox_failure(call, reason), "queue_timeout")

    def close(self) -> None:
        """Have all that wait or run answered now, and end their programs. Later ones are refused."""
        self._closing = True
        for task in self._open:
            task.cancel()
