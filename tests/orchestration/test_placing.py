"""Where a recipe's actors go on a cluster, and what is said before they start."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.system import ray_placement
from actors.system.carried_folder import CarriedFolder
from actors.system.placement import Placement
from actors.system.ray_access import ClusterRefused
from env.image import Image
from orchestration.cast import Cast, cast_for
from orchestration.placing import carrying, placed, wishes
from orchestration.preflight import HostUnfit, check
from orchestration.recipe import Recipe, RecipeError
from orchestration.recipe_loading import load_recipe
from policies.placement import Node
from tests.orchestration.test_recipe import QUICKSTART

JOINED = "cluster.address=head:6379"
HEAD = Node(id="h", address="10.0.0.1", resources={"CPU": 4.0}, home=True)
GPUS = Node(id="g", address="10.0.0.2", resources={"CPU": 8.0, "GPU": 2.0}, labels={"pool": "gpu"})


def recipe_with(*overrides: str) -> Recipe:
    return load_recipe(QUICKSTART, [*overrides])


def cast_of(recipe: Recipe) -> Cast:
    return cast_for(recipe, model=Path("model"), folder=Path("runs/a"), run_id="a")


def test_a_run_that_joins_no_cluster_is_placed_nowhere_in_particular() -> None:
    cast = cast_of(recipe_with())
    assert placed(cast, recipe_with()) is cast


def test_books_stay_at_home_and_the_rest_goes_where_the_recipe_says() -> None:
    recipe = recipe_with(
        JOINED,
        "environments.workers=3",
        "cluster.environments={cpu_only=true}",
        'cluster.generators={labels={pool="gpu"}, resources={disk=0.5}, cpus=2.5}',
        "generators.gpus=1",
    )
    cast = placed(cast_of(recipe), recipe)
    home = [cast.director, cast.balancer, cast.archive, cast.learner, *cast.rollouts]
    assert [part.name for part in home if part.placement != Placement(home=True)] == []
    for part in cast.environments:
        assert (part.placement, part.cpus) == (Placement(cpu_only=True, spread=True), 3.0)
        assert part.arguments["check_host"] is True
    for part in cast.generators:
        assert part.placement == Placement(labels={"pool": "gpu"}, resources={"disk": 0.5})
        assert (part.cpus, part.gpus) == (2.5, 1.0)


def test_learners_take_the_places_of_one_group() -> None:
    recipe = recipe_with(
        JOINED,
        "learner.count=2",
        "learner.gpus=1",
        "cluster.shared_files=true",
        'cluster.learners={labels={pool="gpu"}, together="strict_pack"}',
    )
    cast = placed(cast_of(recipe), recipe)
    places = [part.placement.place for part in (cast.learner, *cast.other_learners)]
    assert [place.index for place in places if place] == [0, 1]
    assert all(place is not None and place.places == ({"CPU": 2.0, "GPU": 1.0},) * 2 for place in places)
    (together,) = [wish for wish in wishes(cast) if "learner" in wish.actor]
    assert together.resources == {"CPU": 4.0, "GPU": 2.0}


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["cluster.learners={}"], "shared_files = true"),
        (["cluster.shared_files=true", "cluster.learners={}", "learner.count=2"], "strict_pack"),
        (["cluster.generators.label={}"], "unknown key 'cluster.generators.label'"),
        (['cluster.generators.labels={pool="a b"}'], "selects no label"),
    ],
)
def test_wishes_that_can_not_work_are_refused_with_the_recipe(overrides: list[str], complaint: str) -> None:
    with pytest.raises(RecipeError, match=complaint):
        recipe_with(JOINED, *overrides)


async def test_model_and_libraries_are_carried_to_those_who_may_be_elsewhere() -> None:
    recipe = recipe_with(JOINED)
    carried: list[Path] = []

    async def carry(folder: Path) -> CarriedFolder:
        carried.append(folder)
        return CarriedFolder(path=str(folder), home="h", digest=str(len(carried)), pieces=())

    before = placed(cast_of(recipe), recipe)
    cast = await carrying(before, recipe, carry)
    assert carried == [Path("model"), Image().libraries]
    for part in (*cast.generators, *cast.rollouts):
        assert part.arguments["model"].path == "model"
    for part in cast.environments:
        assert part.arguments["libraries"].path == str(Image().libraries)
    assert (cast.learner, cast.director) == (before.learner, before.director)
    assert await carrying(before, recipe_with(JOINED, "cluster.shared_files=true"), carry) is before


def test_preflight_says_what_is_asked_and_what_the_cluster_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_placement, "cluster_nodes", lambda address, allow_open: [HEAD, GPUS])
    recipe = recipe_with(JOINED, "generators.count=3", "generators.gpus=1")
    with pytest.raises(HostUnfit) as refused:
        check(recipe, tmp_path)
    text = str(refused.value)
    assert "the cluster at head:6379 can't hold the recipe's actors" in text
    assert "1 of 3 actors find no place (generator-2): each needs 1 CPU, 1 GPU" in text
    assert "10.0.0.2: 8 CPU, 2 GPU, pool=gpu" in text
    fits = check(recipe_with(JOINED, "generators.count=2", "generators.gpus=1"), tmp_path)
    assert fits.nodes == (HEAD, GPUS) and fits.as_dict()["nodes"][1]["address"] == "10.0.0.2"


def test_preflight_says_why_a_cluster_can_not_be_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(address: str, allow_open: bool) -> list[Node]:
        raise ClusterRefused(f"no Ray cluster answers at {address}")

    monkeypatch.setattr(ray_placement, "cluster_nodes", refuse)
    with pytest.raises(HostUnfit, match="no Ray cluster answers at head:6379"):
        check(recipe_with(JOINED), tmp_path)
