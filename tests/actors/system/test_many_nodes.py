"""Several raylets on one machine: where actors are put, what is brought to them, and what follows when one is lost.

The session's Ray is the head node; two more are added here, `a` with a GPU on its books and `b` without.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import grpc
import psutil
import pytest
import pytest_asyncio

from actors.system import ray_access
from actors.system.actor import ActorLost, ActorRef
from actors.system.carried_folder import CACHE_VARIABLE
from actors.system.leftovers import session_processes
from actors.system.local_ray import LocalRay
from actors.system.placement import Placement, PlaceTogether
from actors.system.ray_access import CHECK_ALIVE, ClusterRefused, cluster_address, join_cluster, takes_anyone
from actors.system.ray_placement import ray_nodes
from actors.system.ray_stage import RayStage
from actors.system.stage import Part
from tests.actors.system.players import Player, Say

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def nodes(local_ray: LocalRay, cache: Path) -> Iterator[dict[str, str]]:
    """Ids by name. They are gone at the end: other tests know nothing of them."""
    added: dict[str, str] = {"home": next(node.id for node in ray_nodes() if node.home)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(cache))
        for name, gpus in (("a", 1), ("b", 0)):
            added[name] = local_ray.add_node(
                cpus=2, gpus=gpus, labels={"pool": name}, resources={"sandbox": 2.0} if name == "b" else None
            )
    yield added
    for name in ("a", "b"):
        local_ray.remove_node(added[name])
    while {node.id for node in ray_nodes()} != {added["home"]}:
        time.sleep(0.05)  # until then others' actors might be put on them


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(nodes: dict[str, str], ray_stage_factory: Callable[..., RayStage]) -> AsyncIterator[RayStage]:
    async with ray_stage_factory(grace_s=5) as stage:
        yield stage


def player(name: str, *, restarts: int = 0, cpus: float = 0.0, gpus: float = 0.0, **placement) -> Part:
    return Part(name=name, actor=Player, cpus=cpus, gpus=gpus, restarts=restarts, placement=Placement(**placement))


async def test_actors_are_where_labels_resources_and_gpus_put_them(stage: RayStage, nodes: dict[str, str]) -> None:
    wishes = {
        "by-label": ("a", player("by-label", labels={"pool": "a"})),
        "by-resource": ("b", player("by-resource", resources={"sandbox": 1.0})),
        "by-gpu": ("a", player("by-gpu", gpus=1)),
        "without-gpus": ("b", player("without-gpus", cpu_only=True, labels={"pool": "in(a,b)"})),
        "at-home": ("home", player("at-home", home=True)),
    }
    refs = await stage.spawn(*[part for _, part in wishes.values()])
    assert {ref.name: stage.node(ref) for ref in refs} == {name: nodes[node] for name, (node, _) in wishes.items()}
    for ref in refs:
        assert (await stage.port.ask(ref, Say(text="x"), PATIENCE_S)).text == "x"
        await stage.kill(ref)


async def test_spread_actors_use_every_node_that_will_do(stage: RayStage, nodes: dict[str, str]) -> None:
    parts = [player(f"spread-{i}", labels={"pool": "in(a,b)"}, spread=True, cpus=1) for i in range(4)]
    refs = await stage.spawn(*parts)
    assert {stage.node(ref) for ref in refs} == {nodes["a"], nodes["b"]}
    for ref in refs:
        await stage.kill(ref)


async def test_a_group_s_places_are_reserved_together(stage: RayStage, nodes: dict[str, str]) -> None:
    places = ({"CPU": 1.0}, {"CPU": 1.0})

    def group(name: str, together) -> list[Part]:
        return [
            player(
                f"{name}-{index}",
                cpus=1,
                labels={"pool": "in(a,b)"},
                place=PlaceTogether(group=name, together=together, places=places, index=index),
            )
            for index in range(2)
        ]

    packed = await stage.spawn(*group("packed", "strict_pack"))
    assert len({stage.node(ref) for ref in packed}) == 1
    for ref in packed:
        await stage.kill(ref)
    await stage._placement.release("packed")
    apart = await stage.spawn(*group("apart", "strict_spread"))
    assert {stage.node(ref) for ref in apart} == {nodes["a"], nodes["b"]}
    for ref in apart:
        await stage.kill(ref)
    await stage._placement.release()


async def test_what_no_node_can_hold_is_refused_with_what_there_is(stage: RayStage) -> None:
    with pytest.raises(ValueError, match=r"each needs 3 CPU, pool=a; nodes that would do: 127.0.0.1: 2 CPU, 1 GPU"):
        await stage.spawn(player("large", cpus=3, labels={"pool": "a"}))
    with pytest.raises(ValueError, match="no node is such"):
        await stage.spawn(player("nowhere", labels={"pool": "c"}))


async def test_a_folder_reaches_other_nodes_and_is_used_in_place_at_home(
    stage: RayStage, tmp_path: Path, cache: Path
) -> None:
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "part").write_bytes(b"7" * 1000)
    carried = await stage.carry(folder)
    arguments = {"greeting": carried}
    refs = await stage.spawn(
        Part(name="near", actor=Player, arguments=arguments, placement=Placement(home=True)),
        Part(name="far", actor=Player, arguments=arguments, placement=Placement(labels={"pool": "b"})),
    )
    near, far = [(await stage.port.ask(ref, Say(text=""), PATIENCE_S)).text for ref in refs]
    assert near == str(folder)
    assert far == str(cache / carried.digest)
    assert (Path(far) / "part").read_bytes() == b"7" * 1000
    for ref in refs:
        await stage.kill(ref)


async def test_who_has_no_token_is_refused(local_ray: LocalRay, nodes: dict[str, str]) -> None:
    assert not await asyncio.to_thread(takes_anyone, local_ray.address)
    right = os.environ["RAY_AUTH_TOKEN"]
    for token, outcome in [("", "UNAUTHENTICATED"), ("0" * 64, "UNAUTHENTICATED"), (right, "OK")]:
        assert await asyncio.to_thread(_knock, local_ray.address, token) == outcome


def _knock(address: str, token: str) -> str:
    with grpc.insecure_channel(address) as channel:
        metadata = (("authorization", f"Bearer {token}"),) if token else ()
        try:
            channel.unary_unary(CHECK_ALIVE)(b"", timeout=PATIENCE_S, metadata=metadata)
        except grpc.RpcError as error:
            return error.code().name  # pyright: ignore[reportAttributeAccessIssue]: every error of a call has one
    return "OK"


async def test_every_port_of_a_run_is_on_the_loopback(
    stage: RayStage, local_ray: LocalRay, nodes: dict[str, str]
) -> None:
    (ref,) = await stage.spawn(player("listening", labels={"pool": "b"}))
    assert local_ray.folder is not None
    processes = session_processes(local_ray.folder)
    assert stage.pid(ref) in [process.pid for process in processes]
    ports = [
        (process.name(), connection.laddr)
        for process in processes
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN or connection.type.name == "SOCK_DGRAM"
    ]
    assert len(ports) >= 3  # gcs, raylets, actors
    assert [port for port in ports if not _is_loopback(port[1].ip)] == []
    await stage.kill(ref)


def _is_loopback(text: str) -> bool:
    address = ipaddress.ip_address(text)
    return ((address.ipv4_mapped if address.version == 6 else None) or address).is_loopback


async def test_the_token_is_in_no_command_line_and_no_log(local_ray: LocalRay, nodes: dict[str, str]) -> None:
    token = os.environ["RAY_AUTH_TOKEN"]
    assert len(token) >= 32 and local_ray.folder is not None
    assert [p for p in session_processes(local_ray.folder) if token in " ".join(p.cmdline())] == []
    assert [path for path in _files(local_ray.folder) if token.encode() in path.read_bytes()] == []


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]


async def test_an_address_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_access, "PROBE_S", 0.5)
    with pytest.raises(ClusterRefused, match="no address"):
        cluster_address("not an address")
    with pytest.raises(ClusterRefused, match="no Ray cluster answers"):
        await asyncio.to_thread(takes_anyone, "127.0.0.1:1")


async def test_a_cluster_that_takes_anyone_is_not_joined() -> None:
    # Answers anyone, as Ray's own server does without a token.
    service, _, method = CHECK_ALIVE.removeprefix("/").partition("/")
    answer = grpc.unary_unary_rpc_method_handler(lambda request, context: b"")
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: answer}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with pytest.raises(ClusterRefused, match="takes anyone who can reach it"):
            await asyncio.to_thread(join_cluster, f"127.0.0.1:{port}")
    finally:
        server.stop(None)


async def test_actors_of_a_lost_node_come_back_on_one_that_joins_with_what_they_need(
    stage: RayStage, nodes: dict[str, str], local_ray: LocalRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, later = tmp_path / "weights", tmp_path / "later"
    folder.mkdir()
    (folder / "part").write_bytes(b"7" * 1000)
    carried = await stage.carry(folder)
    movable = player("movable", restarts=2, labels={"pool": "in(a,b)"}, cpu_only=True)
    bound = player("bound", restarts=2, labels={"pool": "b"}, cpus=1)
    refs = await stage.spawn(
        movable, replace(bound, arguments={"greeting": carried}), player("staying", labels={"pool": "a"})
    )
    assert [stage.node(ref) for ref in refs] == [nodes["b"], nodes["b"], nodes["a"]]
    local_ray.kill_node(nodes["b"])
    monkeypatch.setenv(CACHE_VARIABLE, str(later))  # another machine has another disk
    joined = nodes["b"] = local_ray.add_node(cpus=2, labels={"pool": "b"})
    for ref in refs[:2]:
        assert (await _answer(stage, ref)).incarnation >= 1
        assert stage.node(ref) == joined
    assert (await _answer(stage, refs[1])).text == f"{later / carried.digest}x"
    assert (later / carried.digest / "part").read_bytes() == b"7" * 1000
    assert (await stage.port.ask(refs[2], Say(text="x"), PATIENCE_S)).incarnation == 0
    assert {death.name for death in stage.deaths} >= {"movable", "bound"}


async def _answer(stage: RayStage, ref: ActorRef):
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await stage.port.ask(ref, Say(text="x"), PATIENCE_S)
            except ActorLost:
                await asyncio.sleep(0.1)
