"""What the engines of a rehearsal looked like over time."""

from __future__ import annotations

from dataclasses import dataclass, field

from actors.generator import GeneratorActor
from actors.system.actor import ActorRef
from actors.system.virtual_loop import NS
from actors.system.virtual_stage import VirtualStage


@dataclass(slots=True)
class EngineSeries:
    """`[look][engine]`."""

    seconds: list[float] = field(default_factory=list)
    running: list[list[int]] = field(default_factory=list)
    kv_share: list[list[float]] = field(default_factory=list)


class EngineWatch:
    """Looks at engines at even intervals, without a message: the run is the same as without it.

    Args:
        kv_tokens: KV cache of each.
        interval_s: virtual seconds between two looks.
    """

    def __init__(self, stage: VirtualStage, refs: list[ActorRef], *, kv_tokens: int, interval_s: float) -> None:
        self.series = EngineSeries()
        self._stage, self._refs, self._kv_tokens, self._interval_s = stage, refs, kv_tokens, interval_s
        self._began_ns = stage.loop.now_ns()
        self._on = True
        self._look()

    def end(self) -> None:
        """Look no more."""
        self._on = False

    def _look(self) -> None:
        if not self._on:
            return
        loop, series = self._stage.loop, self.series
        running, kv = [], []
        for ref in self._refs:
            usage = None
            if self._stage.runs(ref):
                actor = self._stage.actor(ref)
                assert isinstance(actor, GeneratorActor)
                usage = actor.engine.usage()
            running.append(usage.running if usage else 0)
            kv.append(usage.kv_used_tokens / self._kv_tokens if usage else 0.0)
        series.seconds.append((loop.now_ns() - self._began_ns) / NS)
        series.running.append(running)
        series.kv_share.append(kv)
        loop.call_later(self._interval_s, self._look)
