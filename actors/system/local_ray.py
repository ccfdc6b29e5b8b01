"""A Ray of this process's own.

Invariants:
- it listens on the loopback only, with a token of its own, and keeps its files in a private folder;
- it is gone, folder and processes, when `LocalRay` closes, however it closes.
"""

from __future__ import annotations

import atexit
import importlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self

import ray
from ray._private import ray_constants, services
from ray._private.node import Node
from ray._private.parameter import RayParams

from actors.system.leftovers import (
    SESSION_VARIABLE,
    bury_session,
    make_session_folder,
    session_processes,
    sweep_leftovers,
)
from actors.system.ray_access import connect_ray, require_token
from actors.system.stage import ActorStartFailed

NODE_STORE_BYTES = 150 << 20
"""Of the object store of a node that is added."""
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
    """A node of few servers: the raylet, and on the head node gcs.

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
    """A Ray of this process's own, started on entry and gone on exit. Stages opened within it share it.

    Entering raises `ActorStartFailed` if Ray can't be started (no room for its files, too little memory), `ValueError`
    if it runs already.
    """

    open: ClassVar[LocalRay | None] = None
    """The one that is open in this process."""

    def __init__(self, cpus: int | None = None, gpus: int | None = None, object_store_bytes: int = 512 << 20) -> None:
        self.cpus, self.gpus, self.object_store_bytes = cpus, gpus, object_store_bytes
        self.folder: Path | None = None
        self._nodes: list[Node] = []

    def __enter__(self) -> Self:
        if ray.is_initialized():
            raise ValueError("Ray already runs in this process; shut it down first, or join it with `address=`")
        sweep_leftovers()
        self.folder = make_session_folder()
        atexit.register(self.close)
        ray_constants.ENABLE_RAY_CLUSTER = False  # makes this machine's address 127.0.0.1
        try:
            require_token()
            self._start(
                RayParams(
                    num_cpus=self.cpus,
                    num_gpus=self.gpus,
                    object_store_memory=self.object_store_bytes,
                    include_dashboard=False,
                    include_log_monitor=False,  # pyright: ignore[reportArgumentType]
                    no_monitor=True,
                )
            )
            connect_ray(self.address)
        except BaseException as error:  # interrupted too: Ray's processes must not stay behind
            folder, free = self.folder, shutil.disk_usage(self.folder).free
            self.close()
            if not isinstance(error, Exception):
                raise
            # Whatever it is: Ray's own have no class in common, nor have those of processes that can't be started.
            raise ActorStartFailed(
                f"Ray could not be started, with its files in {folder.parent} ({free >> 20} MiB are free there; TMPDIR "
                f"names another place): {str(error).strip() or type(error).__name__}"
            ) from error
        LocalRay.open = self
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        """`HOST:PORT` of the cluster that it is."""
        assert self._nodes, "it is open"
        return str(self._nodes[0].address)

    def add_node(
        self,
        *,
        cpus: int,
        gpus: int = 0,
        resources: dict[str, float] | None = None,
        labels: dict[str, str] | None = None,
    ) -> str:
        """One more raylet, as if it were another machine; returns its id. For tests of many nodes.

        Does what `ray.cluster_utils.Cluster` does, with fewer servers for each: its own nodes end themselves where
        their agents are late, which they are on a busy machine.
        """
        params = RayParams(
            num_cpus=cpus,
            num_gpus=gpus,
            resources=resources or {},
            labels=labels or {},
            object_store_memory=NODE_STORE_BYTES,
            gcs_address=self.address,
            redis_address=self.address,
            include_log_monitor=False,  # pyright: ignore[reportArgumentType]
            node_manager_port=0,
            min_worker_port=0,
            max_worker_port=0,
        )
        return str(self._start(params).node_id)

    def kill_node(self, node_id: str) -> None:
        """Kill the raylet of a node that was added, as a machine is lost: its actors die with it, and Ray notices."""
        self._take_out(node_id).kill_raylet(check_alive=False)

    def remove_node(self, node_id: str) -> None:
        """Take away a node that was added, in order: it tells Ray that it goes."""
        self._take_out(node_id).kill_all_processes(check_alive=False, allow_graceful=True, wait=True)

    def _take_out(self, node_id: str) -> Node:
        (node,) = [node for node in self._nodes[1:] if node.node_id == node_id]
        self._nodes.remove(node)
        return node

    def _start(self, params: RayParams) -> Node:
        params.update(node_ip_address="127.0.0.1", temp_dir=str(self.folder))
        head = not self._nodes
        with _environment({SESSION_VARIABLE: str(self.folder), **_RAY_VARIABLES}), _lean_servers():
            node = _LeanNode(params, head=head, shutdown_at_exit=False, spawn_reaper=True, ray_init_cluster=head)
        self._nodes.append(node)
        return node

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
            while self._nodes:
                self._nodes.pop().kill_all_processes(check_alive=False, allow_graceful=False)
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
