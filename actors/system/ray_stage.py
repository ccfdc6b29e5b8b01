"""Actors as Ray actors: the stage for real runs, on one machine or on a cluster. The only file that imports ray.

Invariants:
- Ray starts processes, carries bytes, keeps blobs and notices deaths; order, resends, deadlines and restarts are ours
  (Ray's own `max_restarts` is 0: it would hide a death for more than a second);
- handles are handed out by introduction, never looked up;
- a local Ray listens on the loopback only, with a token of its own, keeps its files in a private folder, and is gone,
  folder and processes, when `LocalRay` closes, however it closes.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib
import logging
import os
import re
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Self

import ray
from ray import exceptions as ray_errors
from ray._private import ray_constants, services
from ray._private import worker as ray_worker
from ray._private.node import Node
from ray._private.parameter import RayParams
from ray.cloudpickle import dumps as pickle_anything  # pyright: ignore[reportAttributeAccessIssue]
from ray.cloudpickle import loads as unpickle

from actors.system.actor import Actor, ActorRef, BlobRef
from actors.system.blobs import FabricBlobs
from actors.system.cast import Cast
from actors.system.fabric import Fabric, Peers
from actors.system.host import ActorPort, HostSpec, importable
from actors.system.host_process import HostProcess
from actors.system.leftovers import (
    SESSION_VARIABLE,
    bury_session,
    make_session_folder,
    session_processes,
    sweep_leftovers,
)
from actors.system.links import Limits, PeerDied, PeerUnreachable
from actors.system.mailbox import Mailbox
from actors.system.message import Message, decode, encode
from actors.system.stage import Death, Part

logger = logging.getLogger(__name__)

_DRIVER = "driver"
_KEEPER = "driver.blobs"
_CONCURRENCY = 100_000
"""Calls that a host holds open: parked polls and frames, not work."""


_AGENT_COMMAND = re.compile(r"^(--(?:dashboard|runtime_env)_agent_command=).*", re.DOTALL)
_core: Any = importlib.import_module("ray._raylet")  # compiled, without types
_AGENT_PORTS = (
    _core.METRICS_AGENT_PORT_NAME,
    _core.METRICS_EXPORT_PORT_NAME,
    _core.DASHBOARD_AGENT_LISTEN_PORT_NAME,
    _core.RUNTIME_ENV_AGENT_PORT_NAME,
)
_RAY_VARIABLES = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # the loopback is the node's address, for Ray's own processes too
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "150",  # 30 s are too few on a machine that is busy with something else
    "RAY_prestart_worker_first_driver": "0",  # one process per actor, no spare ones
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # an actor without GPUs keeps CUDA_VISIBLE_DEVICES as it is
}


class _LeanNode(Node):
    """A head node of two servers: gcs and raylet.

    Ray's Python servers (dashboard, its agent, the agent for runtime environments, each some 100 MB and seconds of
    import) serve what we don't use. A raylet whose agents are late to report their ports ends itself, after 15 s and
    without a setting for it; so the ports are reported before it starts, as not in use.
    """

    def start_api_server(self, **_: Any) -> None:  # type: ignore[override]
        return None

    def start_raylet(self, *arguments: Any, **options: Any) -> None:
        for port in _AGENT_PORTS:
            _core.persist_port(self.get_session_dir_path(), self.node_id, port, -1)
        super().start_raylet(*arguments, **options)


class LocalRay:
    """A Ray of this process's own, started on entry and gone on exit. Stages opened within it share it."""

    open: ClassVar[LocalRay | None] = None
    """The one that is open in this process."""

    def __init__(self, cpus: int | None = None, gpus: int | None = None, object_store_bytes: int = 512 << 20) -> None:
        self.cpus, self.gpus, self.object_store_bytes = cpus, gpus, object_store_bytes
        self.folder: Path | None = None
        self._node: Node | None = None

    def __enter__(self) -> Self:
        if ray.is_initialized():
            raise ValueError("Ray already runs in this process; shut it down first, or join it with `address=`")
        sweep_leftovers()
        self.folder = make_session_folder()
        atexit.register(self.close)
        ray_constants.ENABLE_RAY_CLUSTER = False  # makes this machine's address 127.0.0.1
        params = RayParams(
            node_ip_address="127.0.0.1",
            num_cpus=self.cpus,
            num_gpus=self.gpus,
            object_store_memory=self.object_store_bytes,
            temp_dir=str(self.folder),
            include_dashboard=False,
            include_log_monitor=False,  # pyright: ignore[reportArgumentType]
            no_monitor=True,
        )
        try:
            with _environment({SESSION_VARIABLE: str(self.folder), **_RAY_VARIABLES}), _lean_servers():
                _require_token()
                self._node = _LeanNode(
                    params, head=True, shutdown_at_exit=False, spawn_reaper=True, ray_init_cluster=True
                )
            _connect(self._node.address)
        except BaseException:  # interrupted too: Ray's processes must not stay behind
            self.close()
            raise
        LocalRay.open = self
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End Ray, wait until its processes have gone, and delete its folder."""
        if self.folder is None:
            return
        LocalRay.open = None
        atexit.unregister(self.close)
        folder, self.folder = self.folder, None
        processes = session_processes(folder)  # while their parents, by which some are known, are there
        try:
            ray.shutdown()
            if self._node is not None:
                self._node.kill_all_processes(check_alive=False, allow_graceful=False)
        finally:
            ray_constants.ENABLE_RAY_CLUSTER = True
            bury_session(folder, processes)


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Environment variables for the processes that are started in the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _lean_servers() -> Iterator[None]:
    """How Ray starts its servers in the block.

    Each has a process group of its own, since a signal to the driver's group must not end them before the driver has
    closed in order. In the place of a raylet's agents, who would keep it alive by living, stand two `cat`, who end when
    the raylet does, since their input ends then.
    """
    original = services.ConsolePopen

    def start(command: list[str], **options: Any) -> Any:
        lean = [_AGENT_COMMAND.sub(r"\1cat", argument) for argument in command]
        return original(lean, process_group=0, **options)

    services.ConsolePopen = start
    try:
        yield
    finally:
        services.ConsolePopen = original


def _require_token() -> None:
    """Only who has this process's token may talk to its Ray: other users of the machine can't."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    _core.Config.initialize("")  # Ray has read the environment when it was imported
    _core.AuthenticationTokenLoader.instance().reset_cache()


def _connect(address: str | None) -> None:
    ray_worker.print_to_stdstream = _overhear
    ray.init(address=address, log_to_driver=False, configure_logging=False, logging_level=logging.ERROR)


def _overhear(said: dict[str, Any], **_: Any) -> None:
    """What Ray would print on the driver's terminal about its workers, `log_to_driver` or not."""
    logger.debug("ray says: %s", "\n".join(said["lines"]))


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
    last_line = str(error).strip().splitlines()[-1]
    detail = last_line.partition("Worker exit detail: ")[2] or last_line
    return detail.partition(" Some common causes")[0]


async def _outcome(remote: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
    """A Ray call, its errors told apart by what they say about the peer."""
    try:
        return await remote(*arguments)
    except ray_errors.ActorDiedError as error:
        raise PeerDied(_cause_of_death(error)) from error
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

    def unpickle(self, data: bytes) -> Any:
        return unpickle(data)

    async def keep(self, value: Any) -> Any:
        return await asyncio.to_thread(ray.put, value)

    async def fetch(self, kept: Any) -> Any:
        try:
            return await kept
        except ray_errors.RayError as error:
            raise KeyError(f"the object store has lost it: {error}") from error


class _Keeper(Actor):
    """Holds the driver's blobs where actors can ask for them."""


class RayStage:
    """A `Stage` on Ray.

    Starts a Ray of its own, or shares the `LocalRay` that is open in this process (whose CPUs count then), or joins the
    cluster at `address`. `deaths` lists who died; `on_death`
    registers a callback that hears of each death at once. With `log_dir`, all that an actor prints or logs is in
    `log_dir/NAME.log`.

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
        start_timeout_s: float = 600.0,
        grace_s: float = 10.0,
        limits: Limits | None = None,
    ) -> None:
        self.name = name
        self._seed, self._log_dir, self._address, self._limits = seed, log_dir, address, limits
        self._own = LocalRay(cpus, gpus, object_store_bytes)
        self._fabric = RayFabric()
        self._cast = Cast(
            self._fabric,
            self._recruit,
            log_dir=log_dir,
            start_timeout_s=start_timeout_s,
            grace_s=grace_s,
            local=address is None,
        )
        self._keeper: asyncio.Task[Any] | None = None
        self._opened = self._closed = False

    async def __aenter__(self) -> Self:
        if self._address is not None:
            _connect(self._address)
        elif LocalRay.open is None:
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

    async def spawn(self, *parts: Part) -> list[ActorRef]:
        """See `Stage.spawn`. Raises `ValueError` for names taken, classes that can't be imported, too few resources."""
        self._check_resources(parts)
        return await self._cast.spawn(parts)

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
            finally:
                self._own.close()
                if self._address is not None:
                    ray.shutdown()

    async def keeper(self) -> Any:
        """The host that answers for the driver's blobs; started when first needed."""
        if self._keeper is None:
            self._keeper = asyncio.get_running_loop().create_task(self.spawn(Part(name=_KEEPER, actor=_Keeper)))
        (ref,) = await asyncio.shield(self._keeper)
        return self._cast.member(ref).reference

    def _check_resources(self, parts: tuple[Part, ...]) -> None:
        total = ray.cluster_resources()
        parts = (*self._cast.present(), *parts)
        for resource, wanted in (("CPU", sum(part.cpus for part in parts)), ("GPU", sum(part.gpus for part in parts))):
            if wanted > total.get(resource, 0.0):
                raise ValueError(
                    f"the actors reserve {wanted:g} {resource}, there are {total.get(resource, 0.0):g}; "
                    f"lower `{resource.lower()}s` of the parts or start with more"
                )

    def _recruit(self, part: Part, incarnation: int) -> Any:
        """Ask Ray for a process."""
        module, qualname = importable(part)
        spec = HostSpec(
            name=part.name,
            incarnation=incarnation,
            seed=self._seed,
            module=module,
            qualname=qualname,
            arguments=pickle_anything(part.arguments),
            threads=part.threads,
            environment=part.environment,
            log_file=None if self._log_dir is None else str((self._log_dir / f"{part.name}.log").absolute()),
        )
        resources = {"num_cpus": part.cpus, "num_gpus": part.gpus}
        remote = ray.remote(HostProcess).options(max_restarts=0, max_concurrency=_CONCURRENCY, **resources)
        return remote.remote(spec, self._fabric)


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
        await super().drop(ref)


class _PlainEcho:
    """Answers each call with the message that it brought."""

    def __init__(self, module: str) -> None:
        importlib.import_module(module)  # its messages

    async def echo(self, tag: str, body: bytes) -> tuple[str, bytes]:
        message = decode(tag, body)
        return type(message).tag, encode(message)


class PlainRayEcho:
    """What the mailbox is measured against: one bare Ray call per request, models validated on both sides."""

    def __init__(self, module: str) -> None:
        """`module` defines the messages. Raises `ValueError` outside of an open stage."""
        if not ray.is_initialized():
            raise ValueError("Ray does not run; open a RayStage first")
        self._handle: Any = ray.remote(_PlainEcho).options(num_cpus=0, max_concurrency=_CONCURRENCY).remote(module)

    async def echo(self, message: Message) -> Message:
        return decode(*await self._handle.echo.remote(message.tag, encode(message)))

    def close(self) -> None:
        ray.kill(self._handle)
