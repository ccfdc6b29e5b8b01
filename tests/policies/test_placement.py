"""What a cluster is said to have no place for."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from policies.placement import ClusterOptions, Node, PlacementOptions, Wish, misfits, selects

HEAD = Node(id="h", address="10.0.0.1", resources={"CPU": 4.0}, labels={"pool": "cpu"}, home=True)
GPU = Node(id="g", address="10.0.0.2", resources={"CPU": 8.0, "GPU": 2.0}, labels={"pool": "gpu"})


def asks(actor: str, cpus: float = 0.0, gpus: float = 0.0, **more) -> Wish:
    return Wish(actor=actor, resources={"CPU": cpus, "GPU": gpus}, **more)


def test_what_fits_is_not_refused() -> None:
    assert misfits([asks("a", cpus=4, cpu_only=True), asks("b", gpus=2), asks("c", home=True)], [HEAD, GPU]) == []
    assert misfits([asks("a", cpus=4), asks("b", cpus=8)], [HEAD, GPU]) == []  # whichever is asked first


def test_a_refusal_names_the_wish_and_what_there_is() -> None:
    wishes = [asks(f"generator-{i}", cpus=1, gpus=1) for i in range(4)]
    (refusal,) = misfits(wishes, [HEAD, GPU])
    assert "2 of 4 actors find no place (generator-2, generator-3)" in refusal
    assert "1 CPU, 1 GPU" in refusal and "10.0.0.2: 8 CPU, 2 GPU, pool=gpu" in refusal
    assert "10.0.0.1 (home): 4 CPU" in refusal  # a node that would do, were there a GPU on it

    (refusal,) = misfits([asks("environment-0", labels={"pool": "fast"})], [HEAD, GPU])
    assert refusal.startswith("environment-0 finds no place: each needs pool=fast, and no node is such")


def test_cpu_only_home_and_custom_resources_count() -> None:
    assert misfits([asks("a", cpus=5, cpu_only=True)], [HEAD, GPU])
    assert misfits([asks("a", cpus=5, home=True)], [HEAD, GPU])
    assert misfits([Wish(actor="a", resources={"sandbox": 1.0})], [HEAD, GPU])
    with_sandbox = Node(id="s", address="10.0.0.3", resources={"CPU": 1.0, "sandbox": 2.0})
    assert misfits([Wish(actor=str(i), resources={"sandbox": 1.0}) for i in range(2)], [HEAD, with_sandbox]) == []


def test_members_that_must_be_apart_need_a_node_each() -> None:
    learners = [asks(f"learner-{i}", cpus=1, apart="learners") for i in range(3)]
    assert misfits(learners[:2], [HEAD, GPU]) == []
    (refusal,) = misfits(learners, [HEAD, GPU])
    assert "a node of its own" in refusal


def test_members_that_must_be_together_are_one_wish() -> None:
    joined = asks("a", cpus=3).joined_by(asks("b", cpus=3, gpus=1))
    assert joined.resources == {"CPU": 6, "GPU": 1}
    assert misfits([joined], [HEAD]) and not misfits([joined], [GPU])


@pytest.mark.parametrize(
    ("selector", "label", "selected"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a", None, False),
        ("!a", "b", True),
        ("!a", None, True),
        ("in(a,b)", "b", True),
        ("in(a,b)", "c", False),
        ("!in(a,b)", "b", False),
        ("!in(a,b)", None, True),
    ],
)
def test_labels_are_selected_as_ray_does(selector: str, label: str | None, selected: bool) -> None:
    assert selects(selector, label) is selected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": {"pool": "a b"}}, "selects no label"),
        ({"labels": {"pool": "in()"}}, "selects no label"),
        ({"resources": {"GPU": 1}}, "not a custom resource"),
        ({"resources": {"tpu": 0}}, "greater than 0"),
        ({"cpus": -1}, "greater than or equal to 0"),
    ],
)
def test_wishes_that_no_cluster_understands_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        PlacementOptions(**options)


def test_learners_leave_the_run_s_folder_only_where_files_are_shared() -> None:
    with pytest.raises(ValidationError, match="shared_files"):
        ClusterOptions.model_validate({"address": "auto", "learners": {"labels": {"pool": "gpu"}}})
    shared = {"address": "auto", "shared_files": True, "learners": {"labels": {"pool": "gpu"}}}
    assert ClusterOptions.model_validate(shared).learners is not None


_NODES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1)), min_size=1, max_size=3)
_WISHES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), st.booleans()), min_size=1, max_size=4)


@given(_NODES, _WISHES)
def test_who_is_accepted_can_be_placed_and_who_is_too_large_alone_is_not_accepted(nodes, wishes) -> None:
    given_nodes = [
        Node(id=str(i), address=str(i), resources={"CPU": float(cpus), "GPU": float(gpus)})
        for i, (cpus, gpus) in enumerate(nodes)
    ]
    given_wishes = [
        asks(str(i), cpus=float(cpus), gpus=float(gpus), cpu_only=bool(cpu_only and not gpus))
        for i, (cpus, gpus, cpu_only) in enumerate(wishes)
    ]
    if not misfits(given_wishes, given_nodes):
        assert any(_holds(given_wishes, given_nodes, choice) for choice in _choices(given_wishes, given_nodes))
    for wish in given_wishes:  # alone, first fit is exact
        assert bool(misfits([wish], given_nodes)) == (not any(_holds([wish], given_nodes, (n,)) for n in given_nodes))


def _choices(wishes, nodes):
    return itertools.product(nodes, repeat=len(wishes))


def _holds(wishes, nodes, choice) -> bool:
    """Whether every node can carry what this choice puts on it: by adding up, in no order."""
    for node in nodes:
        put = [wish for wish, chosen in zip(wishes, choice, strict=True) if chosen is node]
        for name in ("CPU", "GPU"):
            if sum(wish.resources[name] for wish in put) > node.resources[name]:
                return False
        if any(wish.cpu_only for wish in put) and node.resources["GPU"]:
            return False
    return True
