"""Calls of several kinds, each of which prints its own id, so that an answer that went to another call is seen."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from env.tool_call import Limits, Status, ToolCall, ToolResult

Kind = Literal["trivial", "numpy", "failing", "printing", "sleeping"]

MIX: dict[Kind, int] = {"trivial": 9, "numpy": 4, "failing": 3, "printing": 3, "sleeping": 1}
"""In every twenty calls, so many of each kind."""
SLEEP_S = 0.2
LINES = 200
LIMITS = Limits(wall_seconds=30.0)


@dataclass(frozen=True, slots=True)
class Expected:
    """A call and what must come of it."""

    call: ToolCall
    kind: Kind
    status: Status
    stdout: str
    in_stderr: str = ""

    def is_met_by(self, result: ToolResult) -> bool:
        return (
            (result.id, result.status, result.stdout) == (self.call.id, self.status, self.stdout)
            and self.in_stderr in result.stderr
            and bool(self.in_stderr) == bool(result.stderr)
        )


def mixed_calls(count: int, seed: int = 0, name: str = "call") -> Iterator[Expected]:
    """`count` calls of all kinds. The same arguments give the same calls."""
    draw = random.Random(seed)
    round_of: list[Kind] = []
    for number in range(count):
        if not round_of:
            round_of = [kind for kind, share in MIX.items() for _ in range(share)]
            draw.shuffle(round_of)
        yield _expected(round_of.pop(), f"{name}-{number}", number)


def _expected(kind: Kind, id: str, number: int) -> Expected:
    match kind:
        case "trivial":
            return Expected(_call(id, f"print('{id}', {number} * 7)"), kind, "success", f"{id} {number * 7}\n")
        case "numpy":
            size = number % 100 + 1
            code = f"import numpy\nprint('{id}', int(numpy.arange({size}).sum()))"
            return Expected(_call(id, code), kind, "success", f"{id} {size * (size - 1) // 2}\n")
        case "failing":
            return Expected(_call(id, f"print('{id}')\n1 / 0"), kind, "error", f"{id}\n", "ZeroDivisionError")
        case "printing":
            lines = "".join(f"{id} {line}\n" for line in range(LINES))
            return Expected(_call(id, f"for n in range({LINES}): print('{id}', n)"), kind, "success", lines)
        case "sleeping":
            code = f"import time\ntime.sleep({SLEEP_S})\nprint('{id}')"
            return Expected(_call(id, code), kind, "success", f"{id}\n")


def _call(id: str, code: str) -> ToolCall:
    return ToolCall(id=id, code=code, limits=LIMITS)
