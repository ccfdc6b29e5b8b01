"""How busy the generators of a stage are, as its steps report it.

Invariant: a generator that could not be reached at either end of a stretch, or was restarted within it, is left out of
that stretch's figures: its counts begin anew.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from actors.messages import DescribeBalancer, DescribeGenerator, GeneratorStatus
from actors.supervision import patiently
from actors.system.actor import ActorError, ActorRef, Port
from actors.system.clock import seconds_since
from policies.run_progress import Figures

STATUS_DEADLINE_S = 60.0


class GeneratorLoad:
    """Looks at the generators once a step.

    Lifecycle: `begin`; then for each step `look`, and `end_step`: right after it where rollouts are under way all the
    time, else whenever the step ends.
    """

    def __init__(self, port: Port, generators: Sequence[ActorRef], balancer: ActorRef) -> None:
        self._port, self._generators, self._balancer = port, list(generators), balancer
        self._statuses: dict[str, GeneratorStatus] = {}
        self._busy_s: list[float] = []
        self._step_began_ns = 0

    async def begin(self) -> None:
        self._statuses = await self._look()
        self._step_began_ns = self._port.clock.now_ns()

    async def look(self, rollout_s: float | None) -> Figures:
        """How busy they were, and how much of their KV cache was held on average, since the last look.

        Args:
            rollout_s: for how long rollouts were under way since then; None: all the time.
        """
        status = await patiently(self._port, self._balancer, DescribeBalancer(), STATUS_DEADLINE_S)
        before, self._statuses = self._statuses, await self._look()
        window_s = seconds_since(self._port.clock, self._step_began_ns) if rollout_s is None else rollout_s
        figures: Figures = {"peak_leases": float(status.peak_leases)}
        self._busy_s = []
        for name, now in self._statuses.items():
            then = before.get(name)
            if then is None or then.capacity != now.capacity:
                continue
            kv = now.kv_token_seconds - then.kv_token_seconds
            self._busy_s.append(now.busy_seconds - then.busy_seconds)
            figures[f"busy_share_{name}"] = self._busy_s[-1] / window_s
            figures[f"tokens_per_s_{name}"] = (now.generated_tokens - then.generated_tokens) / window_s
            figures[f"peak_memory_bytes_{name}"] = float(now.peak_memory_bytes)
            figures[f"kv_used_share_{name}"] = kv / (now.capacity.kv_tokens * window_s)
        return figures

    def end_step(self) -> Figures:
        """The share of the step in which engines took no steps, learning and bringing weights included."""
        busy_s, step_s = self._busy_s, seconds_since(self._port.clock, self._step_began_ns)
        self._step_began_ns = self._port.clock.now_ns()
        if not busy_s:
            return {"generator_idle_share": None}
        # An engine's step counts when it ends: one that was under way at the beginning counts as a whole.
        return {"generator_idle_share": max(0.0, 1.0 - sum(busy_s) / len(busy_s) / step_s)}

    async def _look(self) -> dict[str, GeneratorStatus]:
        """By generator; those that can't be reached are left out."""
        statuses = {}
        for ref in self._generators:
            with contextlib.suppress(ActorError):
                statuses[ref.name] = await self._port.ask(ref, DescribeGenerator(), STATUS_DEADLINE_S)
        return statuses
