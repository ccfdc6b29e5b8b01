"""A cast on a cluster: which nodes its actors may run on, and what they need brought there.

Invariants:
- what touches the run's folder (archive, learners unless they say otherwise) and what all others talk to (balancer,
  director) is on the driver's node: losing another node never costs the run's books;
- environments and generators are where the recipe says, and are restarted wherever it allows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

from actors.system.carried_folder import CarriedFolder, FolderNotCarried
from actors.system.placement import Placement, PlaceTogether
from actors.system.ray_placement import wishes_of
from actors.system.stage import Part
from env.image import Image
from orchestration.cast import Cast
from orchestration.recipe import Recipe, RecipeError
from policies.placement import PlacementOptions, Wish

HOME = Placement(home=True)
CHECKED = {"check_host": True}
"""An environment elsewhere looks at its machine itself, as preflight does at the driver's."""
LEARNERS = "learners"
Carry = Callable[[Path], Awaitable[CarriedFolder]]


def placed(cast: Cast, recipe: Recipe) -> Cast:
    """The cast, each part with the nodes that will do for it; as it was for a run that joins no cluster."""
    cluster = recipe.cluster
    if not cluster.address:
        return cast
    learners = _learners((cast.learner, *cast.other_learners), recipe)
    environments, generators = recipe.environments, recipe.generators
    return replace(
        cast,
        learner=learners[0],
        other_learners=tuple(learners[1:]),
        balancer=replace(cast.balancer, placement=HOME),
        archive=replace(cast.archive, placement=HOME),
        director=replace(cast.director, placement=HOME),
        environments=tuple(
            replace(_wishing(part, cluster.environments, environments.workers), arguments=part.arguments | CHECKED)
            for part in cast.environments
        ),
        generators=tuple(_wishing(part, cluster.generators, generators.threads) for part in cast.generators),
        rollouts=tuple(
            replace(part, placement=HOME) if cluster.rollouts is None else _wishing(part, cluster.rollouts, 0)
            for part in cast.rollouts
        ),
    )


def _wishing(part: Part, options: PlacementOptions, threads: int) -> Part:
    return replace(
        part,
        cpus=float(threads) if options.cpus is None else options.cpus,
        placement=Placement(
            resources=options.resources, labels=options.labels, cpu_only=options.cpu_only, spread=options.spread
        ),
    )


def _learners(parts: Sequence[Part], recipe: Recipe) -> list[Part]:
    options = recipe.cluster.learners
    if options is None:
        return [replace(part, placement=HOME) for part in parts]
    wishing = [_wishing(part, options, recipe.learner.threads) for part in parts]
    if options.together is None:
        return wishing
    places = tuple({"CPU": part.cpus, "GPU": part.gpus} | options.resources for part in wishing)
    places = tuple({name: amount for name, amount in place.items() if amount} for place in places)
    return [
        replace(
            part,
            placement=replace(
                part.placement,
                place=PlaceTogether(group=LEARNERS, together=options.together, places=places, index=index),
            ),
        )
        for index, part in enumerate(wishing)
    ]


async def carrying(cast: Cast, recipe: Recipe, carry: Carry) -> Cast:
    """The cast, with the model and the sandbox's libraries brought to whatever node needs them.

    Args:
        carry: packs a folder for the arguments of parts (`RayStage.carry`).

    Raises `RecipeError` if there is no room to pack them.
    """
    if not recipe.cluster.address or recipe.cluster.shared_files:
        return cast
    libraries = Image().libraries
    try:
        model = await carry(Path(cast.learner.arguments["model"]))
        image = {} if libraries is None else {"libraries": await carry(libraries)}
    except (FolderNotCarried, OSError) as error:
        raise RecipeError(f"what other nodes need could not be packed: {error}") from error
    with_model = {"model": model}
    return replace(
        cast,
        environments=tuple(replace(part, arguments=part.arguments | image) for part in cast.environments),
        generators=tuple(replace(part, arguments=part.arguments | with_model) for part in cast.generators),
        rollouts=tuple(replace(part, arguments=part.arguments | with_model) for part in cast.rollouts),
    )


def wishes(cast: Cast) -> list[Wish]:
    """What the parts of a cast need of nodes."""
    return wishes_of(cast.parts())
