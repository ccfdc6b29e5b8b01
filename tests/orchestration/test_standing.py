"""A run goes on as long as there is one of each kind, and ends with the reason when there is none."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from actors.system.stage import Death
from orchestration.cast import cast_for
from orchestration.recipe_loading import load_recipe
from orchestration.resume import Beginning
from orchestration.standing import RunCannotGoOn, Standing

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.toml"


@pytest.fixture
async def standing(tmp_path: Path) -> Standing:
    """Of the quickstart: two generators, environments and rollout actors, one of all others."""
    recipe = load_recipe(QUICKSTART)
    return Standing(cast_for(recipe, model=tmp_path, folder=tmp_path, run_id="standing", beginning=Beginning()))


def dead(name: str, *, restarting: bool = False) -> Death:
    return Death(name, 0, "killed", restarting)


async def outcome(standing: Standing, *deaths: Death) -> str:
    """What comes of work during which these die."""
    ended = asyncio.Event()

    async def work() -> str:
        try:
            for death in deaths:
                standing.heard(death)
            await asyncio.sleep(0.01)
            return "done"
        finally:
            ended.set()

    try:
        return await standing.while_it_lasts(work())
    except RunCannotGoOn as error:
        assert ended.is_set(), "the work was ended"
        return str(error)


@pytest.mark.parametrize("kind", ["environment", "generator", "rollout"])
async def test_the_last_of_a_kind_ends_the_run_and_no_other(standing: Standing, kind: str) -> None:
    assert await outcome(standing, dead(f"{kind}-0")) == "done"
    told = await outcome(standing, dead(f"{kind}-1"))
    assert f"the last {kind}" in told and f"({kind}-1) is dead, and is not started again: killed" in told


@pytest.mark.parametrize("name", ["director", "balancer", "archive", "learner"])
async def test_one_of_which_there_is_no_other_ends_the_run_unless_it_is_started_again(
    standing: Standing, name: str
) -> None:
    assert await outcome(standing, dead(name, restarting=True)) == "done"
    assert await outcome(standing, dead(name)) == f"the {name} is dead, and is not started again: killed"


async def test_who_is_cancelled_hears_of_that_and_the_first_reason_counts(standing: Standing) -> None:
    task = asyncio.ensure_future(standing.while_it_lasts(asyncio.Event().wait()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "the archive" in await outcome(standing, dead("archive"), dead("learner"))
