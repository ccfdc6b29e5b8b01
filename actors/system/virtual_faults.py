"""What a fault plan does to messages on the virtual stage's way."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from actors.system.actor_faults import MESSAGE_KINDS, SLOW_TURN_S, ActorFault, ActorFaultPlan
from actors.system.virtual_loop import NS


class Travel(NamedTuple):
    """What happens to one message."""

    extra_ns: int = 0
    copies: int = 1
    lost: bool = False
    fault: str = ""


_PLAIN = Travel()


class Weather:
    """The faults of a plan that hit messages, as they come due."""

    def __init__(self, plan: ActorFaultPlan, resend_s: float, jitter_s: float, rng: Random | None) -> None:
        self._pending = [fault for fault in plan.faults if fault.kind in MESSAGE_KINDS]
        self._left = {id: fault.messages for id, fault in enumerate(self._pending)}
        self._pauses = [fault for fault in plan.faults if fault.kind in ("freeze", "slow")]
        self._resend_ns, self._jitter_s, self._rng = round(resend_s * NS), jitter_s, rng
        self._latest: dict[tuple[str, str, str], int] = {}
        self.calm = not plan.faults and rng is None
        """Whether every message simply takes the latency."""

    def travel(self, now: int, source: str, target: str, lane: str) -> Travel:
        """What happens to a message that `source` sends to `target` now."""
        extra = self.frozen_ns(now, target) + self.frozen_ns(now, source)
        if self._rng is not None:
            extra += round(self._rng.random() * self._jitter_s * NS)
        for id, fault in enumerate(self._pending):
            if fault.actor == target and self._left[id] and now >= fault.at * NS:
                self._left[id] -= 1
                return self._hit(fault, extra)
        return _PLAIN if not extra else Travel(extra)

    def _hit(self, fault: ActorFault, extra: int) -> Travel:
        match fault.kind:
            case "delay":
                return Travel(extra + round(fault.seconds * NS), fault="delay")
            case "drop":
                return Travel(extra + self._resend_ns, fault="drop")
            case "double":
                return Travel(extra, copies=2, fault="double")
            case _:
                return Travel(extra, lost=True, fault="lose")

    def frozen_ns(self, now: int, name: str) -> int:
        """How long an actor will neither hear nor say anything."""
        return max((_pause_ns(fault, now) for fault in self._pauses if fault.actor == name), default=0)

    def in_order(self, arrival: int, source: str, target: str, lane: str) -> int:
        """When a message arrives that must not overtake those before it on its lane."""
        key = (source, target, lane)
        arrival = max(arrival, self._latest.get(key, 0))
        self._latest[key] = arrival
        return arrival


def _pause_ns(fault: ActorFault, now: int) -> int:
    """How long an actor that is frozen or slow hears and says nothing from now on.

    One that is slow is frozen for the first part of each turn. What it computes takes as long as ever.
    """
    since, length = now - fault.at * NS, fault.seconds * NS
    if not 0 <= since < length:
        return 0
    if fault.kind == "freeze":
        return round(length - since)
    turn = SLOW_TURN_S * NS
    left = turn * (1 - 1 / fault.times) - since % turn
    return round(max(0.0, min(left, length - since)))
