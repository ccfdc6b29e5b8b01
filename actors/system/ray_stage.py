"""Actors as Ray actors: the stage for real runs, on one machine or on a cluster.

Invariants:
- Ray starts processes, carries bytes, keeps blobs and notices deaths; order, resends, deadlines and restarts are ours
  (Ray's own `max_restarts` is 0: it would hide a death for more than a second);
- handles are handed out by introduction, never looked up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import ray
from ray.cloudpickle import dumps as pickle_anything  # pyright: ignore[reportAttributeAccessIssue]

from actors.system.actor import Actor, ActorRef, BlobRef
from actors.system.blobs import FabricBlobs
from actors.system.carried_folder import CarriedFolder, packed, read_pieces
from actors.system.cast import Cast
from actors.system.fabric import Fabric, Peers
from actors.system.frame_faults import FrameFaultKind
from actors.system.host import ActorPort, HostSpec, importable
from actors.system.host_process import HostProcess
from actors.system.links import Limits
from actors.system.local_ray import LocalRay
from actors.system.mailbox import Mailbox
from actors.system.placement import Placement
from actors.system.ray_access import join_cluster
from actors.system.ray_fabric import RayFabric
from actors.system.ray_placement import RayPlacement, node_of
from actors.system.stage import Death, Part, check_open

logger = logging.getLogger(__name__)

_DRIVER = "driver"
_KEEPER = "driver.blobs"
CONCURRENCY = 100_000
"""Calls that a host holds open: parked polls and frames, not work."""

_Host: Any = ray.remote(HostProcess)
"""Made once: whoever gets a handle keeps what Ray knows of its class, 60 KiB, for as long as it lives, and each call of
`ray.remote` makes a class of its own (Ray's documentation has it as a pattern to avoid)."""
_OPTIONS = {"max_restarts": 0, "max_concurrency": CONCURRENCY, "enable_task_events": False}
"""Task events: a record of each frame and poll, for Ray's dashboard, that sender and receiver gather for a second and
Ray's head keeps. Nobody reads them, and their bursts make the heaps of both grow by some MiB."""


class _Keeper(Actor):
    """Holds the driver's blobs where actors can ask for them."""


_KEEPER_PART = Part(name=_KEEPER, actor=_Keeper, placement=Placement(home=True))


class RayStage:
    """A `Stage` on Ray.

    Starts a Ray of its own, or shares the `LocalRay` that is open in this process (whose CPUs count then), or joins the
    cluster at `address`; one that takes anyone only with `allow_open` (`actors.system.ray_access`). `deaths` lists who
    died; `on_death` registers a callback that hears of each death at once. An actor whose loop answers nothing for
    `frozen_after_s` is killed. With `log_dir`, all that an actor prints or logs is
    in `log_dir/NAME.log`, on the node where it runs.

    Example:
        async with RayStage(seed=0, log_dir=Path("runs/a/logs")) as stage:
            (echo,) = await stage.spawn(Part(name="echo", actor=Echo, restarts=1))
            await stage.port.ask(echo, Ping(text="hello"), deadline_s=5)
    """

    port: ActorPort

    def __init__(
        self,
        *,
        seed: int,
        name: str = "greenroom",
        log_dir: Path | None = None,
        cpus: int | None = None,
        gpus: int | None = None,
        object_store_bytes: int = 512 << 20,
        address: str | None = None,
        allow_open: bool = False,
        start_timeout_s: float = 600.0,
        grace_s: float = 10.0,
        frozen_after_s: float = 120.0,
        limits: Limits | None = None,
    ) -> None:
        self.name = name
        self._seed, self._log_dir, self._limits = seed, log_dir, limits
        self._address, self._allow_open = address, allow_open
        self._own = LocalRay(cpus, gpus, object_store_bytes)
        self._fabric = RayFabric()
        self._placement = RayPlacement(start_timeout_s)
        self._cast = Cast(
            self._fabric,
            self._recruit,
            log_dir=log_dir,
            start_timeout_s=start_timeout_s,
            grace_s=grace_s,
            frozen_after_s=frozen_after_s,
            local=address is None,
        )
        self._keeper: asyncio.Task[Any] | None = None
        self._opened = self._closed = False

    async def __aenter__(self) -> Self:
        if self._opened or self._closed:
            raise ValueError("a stage is opened once; make another one")
        if LocalRay.open is not None:
            self._address = None
        elif self._address is not None:
            join_cluster(self._address, self._allow_open)
        else:
            self._own.__enter__()  # in this thread: Ray's processes are bound to the thread that starts them
        self._mailbox = self._cast.mailbox = Mailbox(_DRIVER, limits=self._limits, on_lost=self._cast.lost)
        self.port = ActorPort(
            self._mailbox,
            seed=self._seed,
            blobs=_DriverBlobs(self, self._fabric, self._cast.peers),
            on_failure=_driver_failed,
        )
        self._opened = True
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def deaths(self) -> list[Death]:
        """Who died so far without being asked to, in order."""
        return self._cast.deaths

    def on_death(self, listener: Callable[[Death], None]) -> None:
        """Call `listener` in the driver's loop whenever an actor's process ends without being asked to."""
        self._cast.on_death(listener)

    def pid(self, ref: ActorRef) -> int:
        """The process that hosts an actor now (on its own machine). Raises `LookupError` for an unknown actor."""
        return self._cast.member(ref).pid

    def node(self, ref: ActorRef) -> str:
        """Id of the node that an actor runs on. Raises `LookupError` for an unknown actor."""
        return node_of(self._cast.member(ref).reference)

    @property
    def own_node(self) -> str:
        """Id of the node that the driver is on. Raises `ValueError` if the stage is not open."""
        self._check_open()
        return self._fabric.node()

    async def disturb(self, ref: ActorRef, kind: FrameFaultKind, frames: int, seconds: float) -> None:
        """For drills: have the next `frames` frames to an actor come late, get lost, or come twice.

        Returns when they have.

        Raises `LookupError` for an unknown actor, `PeerDied` if it dies before.
        """
        await self._fabric.call(self._cast.member(ref).reference, "disturb", kind, frames, seconds)

    def incarnation(self, ref: ActorRef) -> int:
        """How often an actor was started again. Raises `LookupError` for an unknown actor."""
        return self._cast.member(ref).incarnation

    def runs(self, ref: ActorRef) -> bool:
        """Whether an actor has started and not died. Raises `LookupError` for an unknown actor."""
        return self._cast.member(ref).state == "running"

    async def spawn(self, *parts: Part) -> list[ActorRef]:
        """See `Stage.spawn`. Raises `ValueError` for names taken, classes that can't be imported, too few resources, a
        stage that is not open."""
        self._check_open()
        self._placement.check(parts, beside=self._cast.present())
        await self._placement.reserve(parts)
        return await self._cast.spawn(parts)

    async def carry(self, folder: Path) -> CarriedFolder:
        """Pack a folder into the object store, for the arguments of parts; it stays there as long as the stage.

        Raises `FolderNotCarried` if there is no room to pack it, `ValueError` if the stage is not open.
        """
        self._check_open()
        with ExitStack() as stack:
            digest, archive = await asyncio.to_thread(stack.enter_context, packed(folder))
            kept = [await self._fabric.keep(piece) for piece in read_pieces(archive)]
        return CarriedFolder(str(folder), self._fabric.node(), digest, tuple(kept))

    def _check_open(self) -> None:
        # Whatever asks Ray for something where none runs would start one, with a dashboard and all that we leave out.
        check_open(self._opened, self._closed)

    async def kill(self, ref: ActorRef) -> None:
        """See `Stage.kill`; returns when the death has been noticed. Raises `LookupError` for an unknown actor."""
        member = self._cast.member(ref)
        link = self._mailbox.link(ref.name)
        self._fabric.kill(member.reference)
        if link is not None and link.incarnation == member.incarnation:
            await link.ended.wait()

    async def close(self) -> None:
        """See `Stage.close`. Idempotent; bounded by the grace period and some seconds."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._opened:
                await self._cast.stop()
                await self.port.close()
                self.port.release_thread()
                await self._mailbox.close()
        finally:
            try:
                await self._cast.dismiss()
                await self._placement.release()
            finally:
                self._own.close()
                if self._address is not None:
                    ray.shutdown()

    async def keeper(self) -> Any:
        """The host that answers for the driver's blobs; started when first needed."""
        if self._keeper is None:
            self._keeper = asyncio.get_running_loop().create_task(self.spawn(_KEEPER_PART))
        (ref,) = await asyncio.shield(self._keeper)
        return self._cast.member(ref).reference

    def _recruit(self, part: Part, incarnation: int) -> Any:
        """Ask Ray for a process."""
        module, qualname = importable(part)
        # Apart from the others: Ray has to see the references in them.
        carried = {name: value for name, value in part.arguments.items() if isinstance(value, CarriedFolder)}
        spec = HostSpec(
            name=part.name,
            incarnation=incarnation,
            seed=self._seed,
            module=module,
            qualname=qualname,
            arguments=pickle_anything({k: v for k, v in part.arguments.items() if k not in carried}),
            carried=carried,
            threads=part.threads,
            environment=part.environment,
            log_file=None if self._log_dir is None else str((self._log_dir / f"{part.name}.log").absolute()),
        )
        where = self._placement.options(part)
        return _Host.options(**_OPTIONS, **where).remote(spec, self._fabric)


def _driver_failed(error: BaseException) -> None:
    logger.critical("a task of the driver failed", exc_info=error)


class _DriverBlobs(FabricBlobs):
    """The driver is nobody's peer, so a keeper answers for what it puts."""

    def __init__(self, stage: RayStage, fabric: Fabric, peers: Peers) -> None:
        super().__init__(fabric, _KEEPER, 0, peers)
        self._stage, self._fabric = stage, fabric

    async def put(self, value: Any) -> BlobRef:
        keeper = await self._stage.keeper()
        ref = await super().put(value)
        await self._fabric.call(keeper, "adopt", ref.key, self.held(ref.key))
        return ref

    async def drop(self, ref: BlobRef) -> None:
        self.release(ref.key)
        await self._release_at_owner(ref.key)
