"""`greenroom serve-tools`: a tool server over this machine's own interpreters, or over environments on Ray.

Invariants:
- without a token it listens on the loopback only;
- when it ends, however it ends, those who wait are told to try again, and no process, mount or cgroup is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import uvicorn

from env import cgroups
from env.call_scheduler import WORKERS_PER_CORE, CallScheduler, Runs
from env.cgroup_hierarchy import find_hierarchy
from env.descriptors import allow_descriptors
from env.image import Image
from env.interpreters import Interpreters
from env.judge_api import judge_app
from env.judge_queue import JudgeQueue
from env.preflight import check_host
from env.tool_call import Limits
from orchestration.http_connections import KEEP_ALIVE_S, TURNED_AWAY, BoundedConnection, set_limits
from orchestration.recipe import RecipeError

BACKLOG = 4096
ENDS_WITHIN_S = 10
OWN_DESCRIPTORS = 64
WORKER_DESCRIPTORS = 16
"""Kept free of connections, for this process and for each worker: 6 while it waits, more while it runs a program."""
RESTARTS = 1_000_000
"""An environment of a server is brought back however often it dies."""


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """What a tool server is started with."""

    host: str = "127.0.0.1"
    port: int = 8088
    """rStar2-Agent's default; 0 takes a free one."""
    token: str = ""
    limits: Limits = field(default_factory=lambda: Limits(wall_seconds=10.0))
    """What each program gets; Code Judge's default is ten seconds."""
    cores: int = 0
    """Programs that run at once on a machine, more while they leave cores idle; 0 means all its cores."""
    most_open: int = 50_000
    """Submissions that wait or run at one time."""
    environments: int = 0
    """Environment actors to run programs on; 0 means none: without Ray, on this machine."""
    ray_address: str | None = None
    """The Ray cluster to join; None starts a local one."""
    allow_open_cluster: bool = False
    """Whether to join one that takes anyone who can reach it."""

    def __post_init__(self) -> None:
        for name, least in (("port", 0), ("cores", 0), ("most_open", 1), ("environments", 0)):
            if getattr(self, name) < least:
                option = f"--{name.replace('_', '-')}"
                raise RecipeError(f"{option} must be at least {least}, not {getattr(self, name)}")
        if self.port > 65535:
            raise RecipeError(f"--port must be at most 65535, not {self.port}")
        if not self.token.isprintable() or self.token != self.token.strip():
            raise RecipeError("the token holds characters that a header can't; take one line of letters and digits")
        if not self.token and not _is_loopback(self.host):
            raise RecipeError(
                f"host {self.host} can be reached from elsewhere, and there is no token; put one in a file and give "
                "--token-file, or set GREENROOM_TOKEN, or listen on 127.0.0.1"
            )
        if self.ray_address is not None and not self.environments:
            raise RecipeError("a Ray address is of no use without environments; give --environments N")

    @property
    def cores_used(self) -> int:
        return self.cores or os.cpu_count() or 1

    @property
    def workers(self) -> int:
        """Most programs at once on one machine."""
        return WORKERS_PER_CORE * self.cores_used


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_token(file: Path | None) -> str:
    """The token in a file, or in the environment variable GREENROOM_TOKEN; empty if there is neither.

    White space around it, such as the end of a line, is not part of it. Raises `RecipeError` for a file that can't be
    read or is empty, and for a variable that is set to white space.
    """
    source = "GREENROOM_TOKEN" if file is None else f"token file {file}"
    try:
        text = os.environ.get("GREENROOM_TOKEN", "") if file is None else file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{source} can't be read: {error}") from error
    token = text.strip()
    if not token and (text or file is not None):
        raise RecipeError(f"{source} is empty; put the token in it")
    return token


async def serve_tools(options: ServeOptions, say: Callable[[str], None]) -> None:
    """Serve until cancelled. `say` is told the address once requests are answered.

    Raises `RecipeError` if the address is taken or this machine can't isolate programs.
    """
    if problems := check_host():
        raise RecipeError("this machine can't run code safely:\n" + "\n".join(map(str, problems)))
    connections = _most_connections(options)
    with _listening(options) as listener:
        backend = _over_ray(options) if options.environments else _alone(options)
        async with backend as runs:
            workers = options.workers * max(1, options.environments)
            queue = JudgeQueue(runs, options.limits, workers=workers, most_open=options.most_open)
            app = judge_app(queue, token=options.token)
            await _serve(
                uvicorn.Config(
                    app,
                    http=BoundedConnection,
                    log_level="warning",
                    access_log=False,
                    lifespan="off",
                    limit_concurrency=connections,
                    timeout_keep_alive=KEEP_ALIVE_S,
                    timeout_graceful_shutdown=ENDS_WITHIN_S,
                ),
                listener,
                queue,
                say,
            )


def _most_connections(options: ServeOptions) -> int:
    """Those beyond are told 503, and there are descriptors for all until they are turned away. Raises `RecipeError` if
    there are for none."""
    allowed = allow_descriptors()
    kept = OWN_DESCRIPTORS + WORKER_DESCRIPTORS * options.workers
    if kept >= allowed:
        raise RecipeError(
            f"this process may have {allowed} files open, and its {options.workers} workers need {kept}: "
            "take fewer --cores, or raise the hard limit (`ulimit -Hn`)"
        )
    return int((allowed - kept) / TURNED_AWAY)


@contextlib.contextmanager
def _listening(options: ServeOptions) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        listener = socket.create_server((options.host, options.port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise RecipeError(
            f"can't listen on {options.host} port {options.port}: {error}; choose another --port"
        ) from error
    with listener:
        set_limits(listener)
        yield listener


@contextlib.asynccontextmanager
async def _alone(options: ServeOptions) -> AsyncIterator[Runs]:
    interpreters = Interpreters(options.limits, options.workers, run_id=f"serve-tools-{options.port}")
    scheduler = CallScheduler(interpreters, cores=options.cores_used, workers=options.workers)
    try:
        try:
            await interpreters.isolation()
        except OSError as error:
            raise RecipeError(f"the sandbox can't be started: {error}") from error
        yield scheduler
    finally:
        await asyncio.gather(scheduler.close(), interpreters.close())


@contextlib.asynccontextmanager
async def _over_ray(options: ServeOptions) -> AsyncIterator[Runs]:
    from actors.environment import EnvironmentActor
    from actors.environment_pool import EnvironmentPool
    from actors.system.carried_folder import FolderNotCarried
    from actors.system.placement import Placement
    from actors.system.ray_stage import RayStage
    from actors.system.stage import ActorStartFailed, Part

    on_cluster = options.ray_address is not None
    stage = RayStage(seed=0, name="serve-tools", address=options.ray_address, allow_open=options.allow_open_cluster)
    parts = [
        Part(
            name=f"environment-{index}",
            actor=EnvironmentActor,
            arguments={
                "limits": options.limits,
                "workers": options.workers,
                "cores": options.cores_used,
                "run_id": f"serve-tools-{options.port}-{index}",
                "check_host": on_cluster,
            },
            # On a cluster the reservation is what spreads them over machines.
            cpus=float(options.cores_used) if on_cluster else 0.0,
            placement=Placement(spread=on_cluster),
            restarts=RESTARTS,
        )
        for index in range(options.environments)
    ]
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(_sweep)
        try:
            await stack.enter_async_context(stage)
            libraries = Image().libraries
            if on_cluster and libraries is not None:
                carried = {"libraries": await stage.carry(libraries)}
                parts = [replace(part, arguments=part.arguments | carried) for part in parts]
            environments = await stage.spawn(*parts)
        except (ActorStartFailed, FolderNotCarried, ValueError) as error:
            raise RecipeError(f"the environments can't be started: {error}") from error
        yield EnvironmentPool(stage.port, environments)


def _sweep() -> None:
    """Remove what killed environments left on this machine: those in their places may not have come so far."""
    if (hierarchy := find_hierarchy()) is not None:
        cgroups.sweep(hierarchy)


class _Server(uvicorn.Server):
    """Says when it is up, and leaves signals alone: whoever runs it cancels it."""

    def __init__(self, config: uvicorn.Config, up: Callable[[], None]) -> None:
        super().__init__(config)
        self._up = up

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._up()


async def _serve(
    config: uvicorn.Config, listener: socket.socket, queue: JudgeQueue, say: Callable[[str], None]
) -> None:
    host, port = listener.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    server = _Server(config, lambda: say(f"serving on {address}  (API: {address}/docs)"))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await asyncio.shield(serving)
    finally:
        queue.close()
        server.should_exit = True
        await serving
