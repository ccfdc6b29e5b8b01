"""What an actor is.

An actor is a plain class whose coroutines answer messages. It owns its state, runs on one event loop,
and reaches the world only through its `Port`, which the stage that hosts it provides:

    class Greeter(Actor):
        @handles(Ping)
        async def on_ping(self, ping: Ping) -> Pong:
            return Pong(text=f"{ping.text} from {self.port.name}")

Lifecycle: `__init__(**arguments)` (no port yet) -> `start()` -> handlers, many at once -> `stop()`.

Invariants:
- a handler that must wait awaits; it never blocks the loop, and it never keeps other handlers waiting;
- a handler may be run again with the same request after a resend: handlers are idempotent, or their
  request carries an id by which a repeat is recognised;
- actors use no clock, randomness, ids, threads or tensors transport but the port's.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from typing import Any, ClassVar, NamedTuple, Protocol

from actors.system.clock import Clock, ThreadWork
from actors.system.message import DescribeWork, Message, Request, WorkDone


class ActorRef(NamedTuple):
    """Names an actor on its stage. It stays valid when the stage recreates the actor."""

    name: str


class ActorError(RuntimeError):
    """An `ask` that did not get its answer."""


class ActorLost(ActorError):
    """The actor died (or was restarted) before it answered; whether it acted is unknown."""


class DeadlineExceeded(ActorError):
    """No answer within the deadline; whether the actor acted, or still will, is unknown. (See `Port.ask`.)"""


class HandlerFailed(ActorError):
    """The handler raised; the text names the exception and holds its traceback."""


class CannotGoOn(ActorError):
    """What was asked for can't be done, and asking again would not help: the text says why, and what would.

    A handler's reaches whoever asked it with its text alone, as an exception of this class and no subclass; and then
    whoever asked that one, and so on up to a user.
    """


def last_line(text: str) -> str:
    """Of what somebody has to say; of a traceback that is the exception."""
    return (text.strip() or "it does not say why").splitlines()[-1]


def in_a_line(error: BaseException) -> str:
    """What went wrong: of a failure in an actor, also the last line of the traceback that came with it."""
    if isinstance(error, CannotGoOn):
        return str(error)
    lines = str(error).strip().splitlines() or [""]
    first = f"{type(error).__name__}: {lines[0]}"
    return first if len(lines) == 1 else f"{first}: {lines[-1].strip()}"


class BlobRef(NamedTuple):
    """Names bytes or tensors in the stage's object store."""

    key: str


class Blobs(Protocol):
    """The object store: for what is too large for a message (weights, training batches)."""

    async def put(self, value: Any) -> BlobRef:
        """Store a picklable value (dicts of tensors, bytes). It lives until `drop` or the run's end."""
        ...

    async def get(self, ref: BlobRef) -> Any:
        """The stored value. Raises `KeyError` if it was dropped or its owner died."""
        ...

    async def drop(self, ref: BlobRef) -> None:
        """Forget the value; dropping twice is allowed."""
        ...


class Port(Protocol):
    """All that an actor can reach of the world."""

    @property
    def name(self) -> str: ...

    @property
    def incarnation(self) -> int: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def random(self) -> Random:
        """Seeded from the run's seed and the actor's name: a new actor shifts nobody's luck."""
        ...

    @property
    def blobs(self) -> Blobs: ...

    async def ask[R: Message](
        self, to: ActorRef, request: Request[R], deadline_s: float | None = None, *, unless_at_work: bool = False
    ) -> R:
        """Send and wait for the answer.

        Raises `ActorLost`, `DeadlineExceeded`, `HandlerFailed` or `CannotGoOn`; never waits for an actor that is gone.

        Args:
            unless_at_work: a deadline that passes only makes the port ask what the actor has done
                (`actors.system.patience`): it is waited for as long as it gets on. For what may rightly take long.
        """
        ...

    def tell(self, to: ActorRef, message: Message) -> None:
        """Send and forget; lost silently if the actor is gone."""
        ...

    async def offload[T](self, cost: Callable[[], float], work: Callable[[], T]) -> T:
        """Run blocking `work` on the actor's own thread (one per actor, in order).

        `cost` gives the seconds that it takes in virtual time, where it runs inline; it is not called on a real stage.
        """
        ...

    def thread_work(self) -> ThreadWork:
        """What the actor's own thread has done."""
        ...

    def start_task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run `work` beside the handlers; its failure fails the actor loudly, the actor's end cancels it."""
        ...

    def fresh_id(self) -> str:
        """An id that no other call in this run returns: name, incarnation and a counter."""
        ...


def seed_for(seed: int, name: str) -> int:
    """The seed of an actor's random stream: `blake2b(seed, name)`, 64 bits."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest(), "little")


type Handler = Callable[[Any, Any], Awaitable[Message | None]]

_HANDLED_ATTRIBUTE = "__greenroom_handles__"


def handles(message_type: type[Message]) -> Callable[[Handler], Handler]:
    """Mark a coroutine method as the handler of `message_type`. One returning None answers `Done`."""

    def mark(method: Handler) -> Handler:
        setattr(method, _HANDLED_ATTRIBUTE, message_type)
        return method

    return mark


class Actor:
    """Base of all actors. Subclasses add `@handles` coroutines and may override `start` and `stop`."""

    port: Port
    """Set by the stage before `start()`."""

    _handlers: ClassVar[dict[str, Handler]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._handlers = dict(cls._handlers)
        for method in vars(cls).values():
            message_type = getattr(method, _HANDLED_ATTRIBUTE, None)
            if message_type is not None:
                cls._handlers[message_type.tag] = method

    async def start(self) -> None:
        """Acquire what the actor needs; called once, before any message arrives."""

    async def stop(self) -> None:
        """Give back what the actor holds; called once, after the last message, unless the process dies."""

    async def work_done(self) -> int:
        """How much the actor has done so far: it changes at least as often as something is done that others wait for.

        That is what its thread does. Those whose work is done elsewhere (by an engine, by those that they wait for
        themselves) say how much that is.
        """
        work = self.port.thread_work()
        return work.jobs + work.seconds

    @handles(DescribeWork)
    async def on_describe_work(self, _: DescribeWork) -> WorkDone:
        return WorkDone(done=await self.work_done())

    def vanish(self) -> None:
        """Let go of what the operating system takes from a process that dies (locks on files), and of nothing else.

        For stages whose actors share a process: called in place of `stop` when an actor dies.
        """

    def handle(self, message: Message) -> Awaitable[Message | None]:
        """Route a message to its handler; what is returned is the handler's coroutine.

        Raises `LookupError` if the actor has none for it.
        """
        handler = self._handlers.get(type(message).tag)
        if handler is None:
            known = ", ".join(sorted(self._handlers))
            raise LookupError(f"{type(self).__name__} does not handle {type(message).tag!r}; it handles {known}")
        return handler(self, message)


Actor._handlers[DescribeWork.tag] = Actor.on_describe_work  # a base class is nobody's subclass
