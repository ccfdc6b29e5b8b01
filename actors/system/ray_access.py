"""Who may talk to a Ray, with what token, and where its workers find greenroom's code.

Invariants:
- a Ray of our own always has a token (`require_token`); one that takes anyone is joined only by whoever says so;
- the token travels in the environment and in Ray's own headers, never in a command line, a message of ours or a log;
- workers import greenroom's packages from where the driver does, whatever else goes by their names.

Source: Ray's documentation, "Ray token authentication": RAY_AUTH_MODE=token; the token is in RAY_AUTH_TOKEN, in the
file RAY_AUTH_TOKEN_PATH, or in ~/.ray/auth_token.
"""

from __future__ import annotations

import importlib
import logging
import os
import secrets
import signal
import threading
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import grpc
import ray
from ray import exceptions as ray_errors
from ray._private import services
from ray._private import worker as ray_worker
from ray.job_config import JobConfig

logger = logging.getLogger(__name__)

_core: Any = importlib.import_module("ray._raylet")  # compiled, without types
PROBE_S = 20.0
"""How long a cluster may take to answer at all."""
CHECK_ALIVE = "/ray.rpc.NodeInfoGcsService/CheckAlive"
"""A question to a cluster's head (an empty message) that it answers to whoever may talk to it."""
_PACKAGES = ("actors", "env", "orchestration", "policies")
_OURS = Path(__file__).resolve().parents[2]
"""The folder that holds them."""
TOKEN_PLACES = "RAY_AUTH_TOKEN, a file named by RAY_AUTH_TOKEN_PATH, or ~/.ray/auth_token"


class ClusterRefused(ValueError):
    """A Ray cluster that can't be joined, or should not be; the text says why and what would help."""


def require_token() -> None:
    """Only who has this process's token may talk to the Ray that it starts: other users of the machine can't."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    _reread_environment()


def _reread_environment() -> None:
    _core.Config.initialize("")  # Ray has read the environment when it was imported
    _core.AuthenticationTokenLoader.instance().reset_cache()


def cluster_address(given: str) -> str:
    """`HOST:PORT` of a cluster; `auto` is the one in RAY_ADDRESS, or the one that was started here last.

    Raises `ClusterRefused` if there is none, or the address is none.
    """
    try:
        address = services.canonicalize_bootstrap_address(given)
    except (ValueError, OSError) as error:
        raise ClusterRefused(f"{given!r} is no address of a Ray cluster ({error}); give HOST:PORT or auto") from error
    if address is None:
        raise ClusterRefused(
            "the address is 'auto', but no Ray was started on this machine and RAY_ADDRESS is not set; run `ray start` "
            "first (docs/clusters.md), or give HOST:PORT"
        )
    return address


def takes_anyone(address: str) -> bool:
    """Whether a cluster answers somebody who has no token. Raises `ClusterRefused` if it answers nobody."""
    with grpc.insecure_channel(address) as channel:
        try:
            channel.unary_unary(CHECK_ALIVE)(b"", timeout=PROBE_S, wait_for_ready=True)
        except grpc.RpcError as error:
            code = error.code()  # pyright: ignore[reportAttributeAccessIssue]: every error of a call has one
            if code is grpc.StatusCode.UNAUTHENTICATED:
                return False
            raise ClusterRefused(
                f"no Ray cluster answers at {address} ({code.name}); see that `ray start --head` runs there and that "
                "its port can be reached"
            ) from error
    return True


def join_cluster(given: str, allow_open: bool = False) -> str:
    """Connect this process to the cluster at an address, with the token of its environment; returns `HOST:PORT`.

    Raises `ClusterRefused` if it can't be reached, refuses the token, or takes anyone (unless `allow_open`).
    """
    address = cluster_address(given)
    # Under TLS both sides show certificates, and a plain probe would only fail.
    if os.environ.get("RAY_USE_TLS", "0") == "0":
        if takes_anyone(address):
            _check_open(address, allow_open)
        else:
            _bring_token(address)
    try:
        connect_ray(address)
    except (ray_errors.AuthenticationError, ConnectionError, RuntimeError) as error:
        first_line = str(error).strip().partition("\n")[0]
        raise ClusterRefused(f"the Ray cluster at {address} could not be joined: {first_line}") from error
    return address


def _check_open(address: str, allow_open: bool) -> None:
    if not allow_open:
        raise ClusterRefused(
            f"the Ray cluster at {address} takes anyone who can reach it, and whoever it takes can run programs on all "
            "its machines; start it with RAY_AUTH_MODE=token (docs/security.md), or say allow_open = true in [cluster] "
            "(serve-tools: --allow-open-cluster) if nobody else can reach it"
        )
    logger.warning("the Ray cluster at %s takes anyone who can reach it", address)


def _bring_token(address: str) -> None:
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    _reread_environment()
    if not _core.AuthenticationTokenLoader.instance().has_token(ignore_auth_mode=True):
        raise ClusterRefused(f"the Ray cluster at {address} wants a token, and there is none in {TOKEN_PLACES}")


def connect_ray(address: str | None) -> None:
    """Join the Ray at `address` from this process, quietly.

    Who handles SIGTERM goes on to do so: `ray.init` puts handlers of its own in the place, which end the process where
    it is.
    """
    ray_worker.print_to_stdstream = _overhear
    ours = signal.getsignal(signal.SIGTERM)
    ray.init(
        address=address,
        job_config=_OwnPackagesFirst(),
        log_to_driver=False,
        configure_logging=False,
        logging_level=logging.ERROR,
    )
    if callable(ours) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, ours)


class _OwnPackagesFirst(JobConfig):
    """What workers are told of the driver, without the folders that would hide greenroom's packages from them.

    Ray has workers look for modules in the driver's working directory before they look anywhere else, also where the
    driver does not look there at all (as a console script doesn't). An `env` or `actors` of somebody else's is found
    there easily.
    """

    def _serialize(self) -> str:
        self._py_driver_sys_path = [folder for folder in self._py_driver_sys_path if not _hides_ours(folder)]
        return super()._serialize()


def _hides_ours(folder: str) -> bool:
    """Whether one of greenroom's packages, looked for in a folder, is another one. (One without an `__init__.py` would
    not be taken, as long as there is ours.)"""
    found = {name: PathFinder.find_spec(name, [folder]) for name in _PACKAGES}
    return any(
        spec is not None and spec.origin is not None and Path(spec.origin).resolve().parent != _OURS / name
        for name, spec in found.items()
    )


def _overhear(said: dict[str, Any], **_: Any) -> None:
    """What Ray would print on the driver's terminal about its workers, `log_to_driver` or not."""
    logger.debug("ray says: %s", "\n".join(said["lines"]))
