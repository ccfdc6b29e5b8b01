"""What a stage of processes asks of the system underneath it, so that the rest of it need not know which one it is."""

from __future__ import annotations

from typing import Any, Protocol

from actors.system.links import Wire

type Peers = dict[str, tuple[int, Any]]
"""Incarnation and reference of each actor, by name."""


class Fabric(Protocol):
    """Picklable: hosts get one with their birth certificate. A reference names a process and travels in calls."""

    def wire(self, reference: Any) -> Wire:
        """The hot path to a host's mailbox."""
        ...

    async def call(self, reference: Any, method: str, *arguments: Any) -> Any:
        """Call a method of a host; for all that is rare. Raises `PeerDied` or `PeerUnreachable`."""
        ...

    def kill(self, reference: Any) -> None:
        """End a process at once; also one that is dead already, or frozen."""
        ...

    def node(self) -> str:
        """Names the machine that this process runs on."""
        ...

    def unpickle(self, data: bytes) -> Any:
        """The inverse of what the stage did to the actors' arguments."""
        ...

    async def keep(self, value: Any) -> Any:
        """Put a value into the object store; it stays while somebody holds what is returned, which travels in calls."""
        ...

    async def fetch(self, kept: Any) -> Any:
        """The value that was kept. Raises `KeyError` if it is lost."""
        ...
