"""What an object holds: everything that can be reached from it, and that goes when it goes."""

from __future__ import annotations

import asyncio
import gc
import types
from collections import Counter
from collections.abc import Iterable
from typing import Any

_SHARED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.FrameType, types.CodeType)
_LEAVES = (asyncio.Future, types.CoroutineType, asyncio.AbstractEventLoop)
"""Counted, but what they hold is the loop's: whatever runs can be reached from it."""


def held_by(root: Any, beyond: Iterable[Any] = (), beyond_types: tuple[type, ...] = ()) -> Counter[str]:
    """How many objects of each type can be reached from `root`, code left out.

    Args:
        beyond: objects that belong to others, as do those of `beyond_types`; neither they nor what they hold count.
    """
    seen = {id(each) for each in beyond} | {id(root)}
    found: Counter[str] = Counter()
    open_ = [root]
    while open_:
        each = open_.pop()
        if isinstance(each, _LEAVES):
            continue
        for other in gc.get_referents(each):
            if id(other) in seen or isinstance(other, _SHARED) or isinstance(other, beyond_types):
                continue
            seen.add(id(other))
            found[type(other).__qualname__] += 1
            open_.append(other)
    return found
