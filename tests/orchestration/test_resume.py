"""Runs that die at any event and go on: no group is trained twice, none is skipped. On the virtual stage.

Death is the end of the loop at that event: no actor gets to say anything after it, and files are as they were handed
to the operating system. (tests/system/test_resume.py does it with SIGKILL.)
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from actors.messages import NextReports, RunEvaluation, RunReinforcement, RunRollout
from actors.storage.trained_steps import FILE, read_trained_steps
from actors.system.actor import CannotGoOn
from actors.system.actor_faults import ActorFault, ActorFaultPlan
from actors.system.trace import EnoughTraced, Event, Trace
from actors.system.virtual_loop import run_virtual
from actors.system.virtual_stage import VirtualStage
from orchestration.cast import enter
from orchestration.cli import app
from orchestration.recipe import Recipe, RecipeError
from orchestration.recipe_loading import load_recipe, validate_recipe
from orchestration.resume import CHECKPOINTS, Beginning, find_run, recipe_of, take_up
from orchestration.run_folder import RunInUse, held, write_json, write_recipe
from orchestration.simulated_cast import simulated_cast
from orchestration.simulation import DIRECTOR
from policies.dialogue import DialogueLimits
from policies.run_progress import Rewound, StepFigures
from policies.stages import ReinforcementOptions
from tests.orchestration.small_recipe import small_recipe

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "recipes" / "quickstart.toml"


def recipe(**changes: Any) -> Recipe:
    data = small_recipe().model_dump(mode="json", exclude_none=True)
    stage = data["stages"]["rl"] | {"steps": 3, "prompts": 3, "group": 2}
    refilled = stage | {"steps": 2, "dynamic_sampling": {"rounds": 2}}
    engine = data["generators"]["engine"] | {"dtype": "float32", "prefix_caching": False}
    data |= {
        "stages": {"rl-1": stage, "rl-2": refilled},
        "evaluation": data["evaluation"] | {"count": 4},
        "checkpoints": {"interval_seconds": 0, "keep": 2},
        "generators": data["generators"] | {"engine": engine},
    }
    return validate_recipe(data | changes, "a recipe of two stages")


class Run:
    """A run that is killed and resumed."""

    def __init__(self, made: Recipe, folder: Path, plan: ActorFaultPlan | None = None) -> None:
        self.recipe, self.folder, self.plan = made, folder, plan
        self.seconds = 0.0
        self.deaths: list[str] = []
        self.played: list[RunRollout] = []
        """Since it was last resumed."""
        self.events = 0

    def go(self, last_event: int | None = None) -> bool:
        """Begin, or resume; whether it came to its end."""
        beginning = take_up(self.folder) if (self.folder / "archive").exists() else Beginning()
        self.played, trace = [], Trace(last=last_event)
        trace.observe(self._look_at)
        try:
            run_virtual(self._play(beginning, trace))
        except EnoughTraced:
            return False
        finally:
            self.events = trace.events
        return True

    def _look_at(self, event: Event) -> None:
        if event.kind == "ask" and isinstance(event.message, RunRollout):
            self.played.append(event.message)

    async def _play(self, beginning: Beginning, trace: Trace) -> None:
        async with VirtualStage(seed=self.recipe.seed, trace=trace, plan=self.plan) as stage:
            cast = simulated_cast(self.recipe, balancer=self.recipe.balancer, folder=self.folder, beginning=beginning)
            await enter(stage, cast)
            evaluation = self.recipe.evaluation
            for name, options in self.recipe.stages.items():
                assert isinstance(options, ReinforcementOptions)
                limits = DialogueLimits(**options.limits.model_dump())
                await stage.port.ask(DIRECTOR, RunReinforcement(name=name, options=options, limits=limits))
                limits = DialogueLimits(**evaluation.limits.model_dump())
                await stage.port.ask(DIRECTOR, RunEvaluation(name=name, options=evaluation, limits=limits))
            reports = (await stage.port.ask(DIRECTOR, NextReports(after=0))).reports
            self.reported = [(each.kind, each.stage, each.step) for each in reports if isinstance(each, StepFigures)]
            self.rewound = [each for each in reports if isinstance(each, Rewound)]
            self.seconds = stage.loop.time()
            self.deaths = [death.name for death in stage.deaths]

    def trained(self) -> list[dict[str, Any]]:
        """The ledger, without the lineages that a death changes."""
        lines = read_trained_steps(self.folder / "archive" / FILE)
        return [line | {"version": line["version"][1]} for line in lines]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = Run(recipe(), tmp_path_factory.mktemp("runs") / "undisturbed")
    assert run.go()
    return run


def test_the_undisturbed_run_trains_every_step_and_poses_each_problem_once(undisturbed: Run) -> None:
    steps = [(line["stage"], line["step"]) for line in undisturbed.trained()]
    assert steps == [("rl-1", 0), ("rl-1", 1), ("rl-1", 2), ("rl-2", 0), ("rl-2", 1)]
    assert len({request.id for request in undisturbed.played}) == len(undisturbed.played)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_run_that_dies_anywhere_again_and_again_trains_the_same_groups(
    undisturbed: Run, tmp_path: Path, seed: int, deterministic: bool
) -> None:
    luck, run, deaths = random.Random(seed), Run(recipe(deterministic=deterministic), tmp_path / "run"), 0
    while not run.go(last_event=luck.randrange(1, max(2, undisturbed.events * 2 // 3))):
        deaths += 1
    assert run.trained() == undisturbed.trained()
    assert deaths > 0


@pytest.mark.parametrize("actor", ["learner", "balancer", "archive", "rollout-0", "generator-1"])
def test_a_run_goes_on_by_itself_when_an_actor_dies_and_trains_the_same_groups(
    undisturbed: Run, tmp_path: Path, actor: str
) -> None:
    times = [undisturbed.seconds * share for share in (0.15, 0.4, 0.75)]
    plan = ActorFaultPlan(faults=tuple(ActorFault(kind="kill", at=at, actor=actor) for at in times))
    run = Run(recipe(), tmp_path / "run", plan)
    assert run.go()
    assert run.deaths == [actor] * 3
    assert run.trained() == undisturbed.trained()
    assert len(run.rewound) == (3 if actor == "learner" else 0)
    assert set(run.reported) == set(undisturbed.reported)
    lineages = {line["version"][0] for line in read_trained_steps(run.folder / "archive" / FILE)}
    assert lineages <= set(range(len(run.rewound) + 1))


def test_a_learner_that_dies_at_the_same_place_again_and_again_ends_the_run(undisturbed: Run, tmp_path: Path) -> None:
    start = undisturbed.seconds * 0.4
    often = tuple(ActorFault(kind="kill", at=start + 15.0 * number, actor="learner") for number in range(9))
    run = Run(recipe(), tmp_path / "run", ActorFaultPlan(faults=often))
    with pytest.raises(CannotGoOn, match=r"^the learner d"):
        run.go()
    run.plan = None
    assert run.go(), "it can be resumed"
    assert run.trained() == undisturbed.trained()


def test_rollouts_that_the_restored_weights_sampled_are_not_played_again(undisturbed: Run, tmp_path: Path) -> None:
    run = Run(recipe(), tmp_path / "run")
    assert not run.go(last_event=undisturbed.events // 6)
    begun = {request.id for request in run.played}
    assert run.go()
    again = begun & {request.id for request in run.played}
    assert run.trained() == undisturbed.trained()
    assert 0 < len(again) < len(begun), "some had not finished; those that had are in the archive"


def test_a_step_is_told_even_if_nobody_had_heard_of_it_when_the_run_died(undisturbed: Run, tmp_path: Path) -> None:
    run = Run(recipe(), tmp_path / "run")
    assert not run.go(last_event=undisturbed.events // 2)
    assert run.go()
    assert run.reported == undisturbed.reported  # nothing was ever fetched before the end


def test_a_damaged_checkpoint_costs_its_step_and_no_more(undisturbed: Run, tmp_path: Path) -> None:
    run = Run(recipe(), tmp_path / "run")
    assert not run.go(last_event=undisturbed.events // 2)
    newest = max((run.folder / CHECKPOINTS).iterdir())
    (newest / "progress.json").write_text("{}")
    beginning = take_up(run.folder)
    assert f"{newest.name}/progress.json" in beginning.notes[0] and "damaged" in beginning.notes[0]
    assert beginning.checkpoint is not None and beginning.checkpoint.name < newest.name
    assert run.go()
    assert run.trained() == undisturbed.trained()


def test_metrics_and_ledger_end_where_the_checkpoint_does(undisturbed: Run, tmp_path: Path) -> None:
    run = Run(recipe(), tmp_path / "run")
    assert not run.go(last_event=undisturbed.events * 3 // 10)
    beginning = take_up(run.folder)
    position = beginning.progress.current
    assert position is not None and position.steps > 0, "it died within the first stage"
    lines = [{"kind": "step", "stage": "rl-1", "step": step, "seconds": 1.0 * step} for step in (1, 2, 3, 4)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (run.folder / "metrics.jsonl").write_text(text + '{"kind": "st')
    beginning = take_up(run.folder)
    kept = [json.loads(line)["step"] for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    told = {each.step for each in beginning.progress.untold if each.stage == "rl-1"}
    assert kept == [step for step in (1, 2, 3, 4) if step <= position.steps and step not in told]
    assert beginning.wall_seconds == 4.0
    assert len(run.trained()) == beginning.progress.archive.trained_steps
    assert beginning.version.lineage == 2, "one for each time that it was taken up"


def test_checkpoints_come_no_more_often_than_asked_for(undisturbed: Run, tmp_path: Path) -> None:
    run = Run(recipe(checkpoints={"interval_seconds": 1e9, "keep": 100}), tmp_path / "run")
    assert run.go()
    assert len(list((run.folder / CHECKPOINTS).iterdir())) == 4, "the ends of two stages and two evaluations"
    assert run.trained() == undisturbed.trained()
    assert len(list((undisturbed.folder / CHECKPOINTS).iterdir())) == 2, "the newest two of nine"


# --- refusals --------------------------------------------------------------------------------------


def test_a_run_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    (tmp_path / "quickstart").mkdir()
    write_recipe(load_recipe(QUICKSTART), tmp_path / "quickstart")
    assert find_run(Path("quickstart"), tmp_path) == tmp_path / "quickstart"
    assert find_run(tmp_path / "quickstart", Path("runs")) == tmp_path / "quickstart"
    with pytest.raises(RecipeError, match=r"no run at quick-start .* quickstart$"):
        find_run(Path("quick-start"), tmp_path)
    with pytest.raises(RecipeError, match=r"can't be looked into \(File name too long\)"):
        find_run(Path("a" * 300), tmp_path)


def test_a_run_may_go_on_on_another_cluster(tmp_path: Path) -> None:
    write_recipe(load_recipe(QUICKSTART, ["cluster.address=gone:6379"]), tmp_path)
    given = load_recipe(QUICKSTART, ["cluster.address=auto", "cluster.environments.cpu_only=true"])
    assert recipe_of(tmp_path, given) == given


def test_a_run_may_go_on_with_settings_that_need_less_memory_unless_its_bits_depend_on_them(tmp_path: Path) -> None:
    less = [
        "learner.threads=1",
        "stages.sft.optimiser.micro_batch_tokens=512",
        "stages.rl-1.optimiser.activation_checkpointing=true",
        "generators.engine.kv_tokens=2048",
        "environments.workers=1",
        "supervision.restarts=3",
    ]
    write_recipe(load_recipe(QUICKSTART), tmp_path)
    given = load_recipe(QUICKSTART, less)
    assert recipe_of(tmp_path, given) == given
    write_recipe(load_recipe(QUICKSTART, ["deterministic=true"]), tmp_path)
    with pytest.raises(RecipeError, match=r"stages\.sft\.optimiser\.micro_batch_tokens is 4096 there and 512 here"):
        recipe_of(tmp_path, load_recipe(QUICKSTART, ["deterministic=true", *less]))


def test_another_recipe_than_the_runs_is_refused_with_the_fields(tmp_path: Path) -> None:
    own = load_recipe(QUICKSTART, ["seed=3"])
    write_recipe(own, tmp_path)
    assert recipe_of(tmp_path, own) == own
    other = load_recipe(QUICKSTART, ["seed=3", "stages.rl-1.prompts=5", "generators.count=1"])
    with pytest.raises(RecipeError) as refusal:
        recipe_of(tmp_path, other)
    assert "stages.rl-1.prompts is 12 there and 5 here" in str(refusal.value)
    assert "generators.count is 2 there and 1 here" in str(refusal.value) and "seed" not in str(refusal.value)


def test_a_run_that_is_done_has_nothing_to_resume(tmp_path: Path) -> None:
    write_json(tmp_path / "summary.json", {"finished": True})
    with pytest.raises(RecipeError, match="is done; nothing is left to resume"):
        take_up(tmp_path)


@pytest.mark.parametrize(
    ("file", "text"),
    [("resumed.json", ""), ("resumed.json", '[{"lineage": 1}, '), ("metrics.jsonl", 'no JSON\n{"kind": "event"}\n')],
)
def test_a_run_whose_books_are_damaged_is_refused_with_the_file(tmp_path: Path, file: str, text: str) -> None:
    (tmp_path / file).write_text(text)
    with pytest.raises(
        RecipeError, match=rf"can't be resumed: {tmp_path / file}.*; if that can't be restored, begin a new run"
    ):
        take_up(tmp_path)


def test_a_torn_summary_keeps_no_run_from_being_resumed(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"finished"')
    assert take_up(tmp_path).times_resumed == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "no recipe; give one"),
        (["--resume", "none"], "no run at none"),
        (["--resume", "run", "--deterministic"], "or --resume RUN, without --deterministic"),
        (["--resume", "run", "--set", "seed=1"], "seed is 0 there and 1 here"),
        ([str(QUICKSTART), "--kill-at", "lunch"], "kill_at = 'lunch': give PHASE or PHASE:N, with a phase of"),
        ([str(QUICKSTART), "--resume", "run", "--set", "seed=8"], "seed is 0 there and 8 here"),
    ],
)
def test_what_can_not_be_resumed_is_refused_with_what_would_be_right(
    tmp_path: Path, arguments: list[str], complaint: str
) -> None:
    (tmp_path / "run").mkdir()
    write_recipe(load_recipe(QUICKSTART), tmp_path / "run")
    done = CliRunner().invoke(app, ["train", *arguments, "--runs", str(tmp_path)])
    assert isinstance(done.exception, RecipeError) and complaint in str(done.exception)


def test_a_run_that_lives_is_left_alone(tmp_path: Path) -> None:
    with held(tmp_path), pytest.raises(RunInUse, match=r"is still at work, as process \d+"), held(tmp_path):
        pass
    with held(tmp_path):  # it has let go
        pass
