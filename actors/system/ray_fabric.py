"""Ray as a fabric: it starts processes, carries bytes, keeps blobs and notices deaths.

Invariant: each failure says whether the peer has died (`PeerDied`) or only could not be reached (`PeerUnreachable`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import ray
from ray import exceptions as ray_errors
from ray.cloudpickle import loads as unpickle

from actors.system.actor import last_line
from actors.system.links import PeerDied, PeerUnreachable


class _RayWire:
    """A `Wire` to one host."""

    def __init__(self, host: Any) -> None:
        self._host = host

    async def frame(self, frame: bytes) -> bytes:
        return await _outcome(self._host.frame.remote, frame)

    async def poll(self, sender: str, incarnation: int, seen: int) -> bytes:
        return await _outcome(self._host.poll.remote, sender, incarnation, seen)


def _cause_of_death(error: BaseException) -> str:
    """What Ray knows about a death, without what it guesses."""
    last = last_line(str(error))
    detail = last.partition("Worker exit detail: ")[2] or last
    return detail.partition(" Some common causes")[0]


async def _outcome(remote: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
    """A Ray call, its errors told apart by what they say about the peer."""
    try:
        return await remote(*arguments)
    except ray_errors.ActorDiedError as error:
        raise PeerDied(_cause_of_death(error)) from error
    except PeerUnreachable as error:  # raised over there, for a frame that a drill drops
        raise PeerUnreachable(last_line(str(error))) from error
    except ray_errors.RayTaskError as error:  # the host itself is broken: sending again would break it again
        raise PeerDied(str(error)) from error
    except ray_errors.RayError as error:
        raise PeerUnreachable(f"{type(error).__name__}: {error}") from error


class RayFabric:
    """A `Fabric` of Ray actors; references are their handles."""

    def wire(self, reference: Any) -> _RayWire:
        return _RayWire(reference)

    async def call(self, reference: Any, method: str, *arguments: Any) -> Any:
        return await _outcome(getattr(reference, method).remote, *arguments)

    def kill(self, reference: Any) -> None:
        with suppress(ray_errors.RayError):  # Ray itself may be gone, and the process with it
            ray.kill(reference)

    def node(self) -> str:
        return ray.get_runtime_context().get_node_id()

    def unpickle(self, data: bytes) -> Any:
        return unpickle(data)

    async def keep(self, value: Any) -> Any:
        return await asyncio.to_thread(ray.put, value)

    async def fetch(self, kept: Any) -> Any:
        try:
            return await kept
        except ray_errors.RayError as error:
            raise KeyError(f"the object store has lost it: {error}") from error
