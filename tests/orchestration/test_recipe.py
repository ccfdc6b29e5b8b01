"""A recipe is refused with the key, the value and what would be right, before anything starts."""

import tomllib
from pathlib import Path

import pytest

from orchestration.ray_drill import read_plan
from orchestration.recipe import Recipe, RecipeError
from orchestration.recipe_loading import load_recipe
from orchestration.run_folder import choose_folder, write_recipe
from orchestration.simulated_cast import simulated_cast
from policies.stages import ReinforcementOptions

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "recipes" / "quickstart.toml"


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.toml")), ids=lambda path: path.name)
def test_shipped_recipes_are_valid(path: Path) -> None:
    assert load_recipe(path).name


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*-plan.json")), ids=lambda path: path.name)
def test_shipped_fault_plans_find_somebody_to_hit_in_the_drills_recipe(path: Path) -> None:
    recipe = load_recipe(ROOT / "recipes" / "drill.toml")
    cast = simulated_cast(recipe, balancer=recipe.balancer, folder=path.parent)
    for fault in read_plan(path).faults:
        assert fault.candidates([part.name for part in cast.parts()])


def test_the_quickstart_is_the_papers_recipe_in_miniature() -> None:
    recipe = load_recipe(QUICKSTART)
    assert [stage.kind for stage in recipe.stages.values()] == ["fine_tune", "reinforce", "reinforce"]
    first, second = list(recipe.stages.values())[1:]
    assert second.limits.max_tokens > first.limits.max_tokens
    assert min(second.problems.levels) > min(first.problems.levels)
    assert recipe.evaluation.count >= 256


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("stages.rl-1.stepz=2", "unknown key 'stages.rl-1.stepz' (value 2)"),
        ('stages.rl-1.steps="many"', "stages.rl-1.steps = 'many': Input should be a valid integer"),
        ("stages.rl-1.steps=0", "stages.rl-1.steps = 0: Input should be greater than or equal to 1"),
        ("generators.count=0", "generators.count = 0"),
        ("model.path=/nowhere", "either model.path (a folder in Hugging Face format) or [model.scratch]"),
        ("generators.engine.kv_tokens=100", "does not fit generators.engine.kv_tokens=100"),
        ("stages.rl-1.limits.max_tokens=100000", "longer than generators.engine.max_sequence_tokens"),
        ("balancer.strategy=magic", "balancer.strategy = 'magic': Input should be 'static'"),
        ("stages.rl-1.kind=dance", "'fine_tune', 'reinforce'"),
        ("stages.rl-1.reset_optimiser=false", "stages.rl-1.reset_optimiser = false goes on with the optimiser"),
        ("stages.rl-2.refresh_reference=false", "stages.rl-2.refresh_reference = false keeps the reference"),
        ("name=../escape", "name = '../escape'"),
        ("model.scratch.heads=3", "must be a multiple of heads=3"),
        (
            "stages.rl-1.problems.levels=[3]",
            "stages.rl-1.problems.levels: no family of arithmetic problems has level 3",
        ),
        ("stages.rl-1.optimiser.betas=[0.9, 1.0]", "stages.rl-1.optimiser.betas.1 = 1.0: Input should be less than 1"),
        ("stages.rl-1.objective.name=[]", "stages.rl-1.objective.name = []: Input should be 'grpo_roc'"),
        ("stages.rl-1.objective.constant_tokens=9", 'only with objective.denominator = "constant"'),
        ("stages.rl-1.objective.importance_level=sequence", "neither importance_cap nor importance_band is given"),
        ("stages.rl-1.resampling.minimum_positives=9", "only group = 8 rollouts are kept"),
        (
            'stages.sft.problems={ source = "dataset", dataset = {} }',
            "stages.sft.problems: source is 'dataset', but demon",
        ),
        ("stages.sft.habits.failing_calls=1.5", "stages.sft.habits.failing_calls = 1.5"),
        ("stages.extra.steps=1", "missing key 'stages.extra.kind'"),
        ("stages.start.kind=reinforce", "missing key 'stages.start.steps'"),
        ('stages.start={ kind = "reinforce", steps = 1 }', "stages: 'start' is what evaluations are filed under"),
        (
            'stages.evaluation={ kind = "reinforce", steps = 1 }',
            "stages: 'evaluation' is what evaluations are filed under",
        ),
        ('stages.a/b={ kind = "reinforce", steps = 1 }', "stages.a/b = 'a/b': String should match pattern"),
        ('stages.fine_tune={ kind = "fine_tune", steps = 0 }', "stages.fine_tune.steps = 0"),
        (
            "simulation.workloads.rl-1={ cut = 0.9 }",
            "simulation.workloads.rl-1.cut = 0.9: Input should be less than 0.5",
        ),
        ("simulation.workloads.rl-9=rstar2-stage-1", "simulation.workloads.rl-9: there is no such stage"),
        ("balancer.headroom=0.99", "of which balancer.headroom=0.99 lets a rollout have 96"),
        ('tools=["jupyter_code", "jupyter_code"]', "tools: jupyter_code, jupyter_code: give each tool once"),
        ("evaluation={ temperature = 0, samples = 4 }", "evaluation: samples = 4, but at temperature = 0"),
        ("seed=" + "9" * 5000, "seed = '99999"),
        ("seed", "is not of the form a.b=value"),
        ("seed.x=1", "'seed' is a value, not a table"),
    ],
)
def test_a_fault_is_named_with_its_key_and_what_would_be_right(override: str, complaint: str) -> None:
    with pytest.raises(RecipeError) as refusal:
        load_recipe(QUICKSTART, [override])
    assert complaint in str(refusal.value)


def test_a_stage_can_keep_what_the_one_before_had() -> None:
    divergence = [f"stages.{name}.objective.kl_weight=0.1" for name in ("rl-1", "rl-2")]
    kept = ["stages.rl-2.reset_optimiser=false", "stages.rl-2.refresh_reference=false"]
    stage = load_recipe(QUICKSTART, [*divergence, *kept]).stages["rl-2"]
    assert isinstance(stage, ReinforcementOptions) and not (stage.reset_optimiser or stage.refresh_reference)


def test_all_faults_are_listed_at_once() -> None:
    with pytest.raises(RecipeError) as refusal:
        load_recipe(QUICKSTART, ["sede=1", "rollouts.count=none"])
    assert "'sede'" in str(refusal.value) and "rollouts.count" in str(refusal.value)


def test_a_missing_file_and_broken_toml_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no recipe at"):
        load_recipe(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("name = ")
    with pytest.raises(RecipeError, match="is not valid TOML"):
        load_recipe(broken)
    broken.write_text("name = " + "[" * 3000)
    with pytest.raises(RecipeError, match="is not valid TOML"):
        load_recipe(broken)


def test_overrides_take_toml_values_and_bare_words() -> None:
    recipe = load_recipe(QUICKSTART, ["seed=7", "name=mine", "stages.rl-1.problems.levels=[1, 2]", "tools=[]"])
    assert (recipe.seed, recipe.name, recipe.stages["rl-1"].problems.levels, recipe.tools) == (7, "mine", (1, 2), ())


def test_the_resolved_recipe_reads_back_as_the_same(tmp_path: Path) -> None:
    recipe = load_recipe(QUICKSTART, ["seed=3"])
    write_recipe(recipe, tmp_path)
    assert Recipe.model_validate(tomllib.loads((tmp_path / "recipe.toml").read_text())) == recipe


def test_an_earlier_run_is_never_overwritten(tmp_path: Path) -> None:
    recipe = load_recipe(QUICKSTART)
    first = choose_folder(recipe, tmp_path)
    first.mkdir()
    assert choose_folder(recipe, tmp_path) == first, "an empty folder holds no run"
    (first / "summary.json").write_text("{}")
    assert choose_folder(recipe, tmp_path) == tmp_path / "quickstart-2"


def test_a_run_folder_that_can_not_be_written_is_refused(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(RecipeError, match="is not a folder; give another with --runs"):
        choose_folder(load_recipe(QUICKSTART), blocked / "runs")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "gone")
    with pytest.raises(RecipeError, match="link is not a folder; give another with --runs"):
        choose_folder(load_recipe(QUICKSTART), link)
    with pytest.raises(RecipeError, match=r"can't be written to \(File name too long\); give another with --runs"):
        choose_folder(load_recipe(QUICKSTART), tmp_path / ("a" * 300))
    with pytest.raises(RecipeError, match=r"can't be written to \(No such file or directory\)"):
        choose_folder(load_recipe(QUICKSTART), Path("/proc/runs"))


@pytest.mark.parametrize("name", ["grpo_roc", "grpo", "dr_grpo", "rloo", "gspo", "cispo"])
def test_an_objective_is_chosen_by_name_and_its_parts_survive_the_resolved_recipe(name: str, tmp_path: Path) -> None:
    overrides = [f"stages.rl-1.objective.name={name}", "stages.rl-1.objective.clip_high=0.3"]
    recipe = load_recipe(QUICKSTART, overrides)
    stage = recipe.stages["rl-1"]
    assert isinstance(stage, ReinforcementOptions)
    assert (stage.objective.name, stage.objective.clip_high) == (name, 0.3)
    assert stage.resampling.rule == ("roc" if name == "grpo_roc" else "none")
    write_recipe(recipe, tmp_path)
    assert load_recipe(tmp_path / "recipe.toml") == recipe


def test_resampling_that_contradicts_the_objective_is_refused_by_name() -> None:
    with pytest.raises(RecipeError, match=r"stages.rl-1.resampling: rule is 'none'.*objective.name = \"grpo\""):
        load_recipe(QUICKSTART, ["stages.rl-1.resampling.rule=none"])


def test_a_deterministic_run_caches_no_prefixes_unless_it_is_told_to_and_then_it_is_refused() -> None:
    recipe = load_recipe(QUICKSTART, ["deterministic=true"])
    assert (recipe.generators.engine.prefix_caching, recipe.balancer.strategy) == (False, "worst_case")
    assert load_recipe(QUICKSTART).generators.engine.prefix_caching
    with pytest.raises(RecipeError, match=r"generators.engine.prefix_caching = True.*needs False"):
        load_recipe(QUICKSTART, ["deterministic=true", "generators.engine.prefix_caching=true"])


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("model.dtype=bfloat16", "model.dtype = 'bfloat16', but a deterministic run needs 'float32'"),
        ("generators.engine.dtype=bfloat16", "generators.engine.dtype = 'bfloat16'"),
        ("balancer.strategy=predictive", "balancer.strategy = 'predictive'"),
    ],
)
def test_what_a_deterministic_run_can_not_be_had_with_is_named(override: str, complaint: str) -> None:
    with pytest.raises(RecipeError) as refusal:
        load_recipe(QUICKSTART, ["deterministic=true", override])
    assert complaint in str(refusal.value)


def test_a_divergence_from_a_reference_is_refused_with_several_learners() -> None:
    several, divergence = "learner.count=2", "stages.rl-2.objective.kl_weight=0.1"
    assert load_recipe(QUICKSTART, [several]).learner.count == 2
    assert load_recipe(QUICKSTART, [divergence]).learner.count == 1
    with pytest.raises(RecipeError, match=r"stages\.rl-2\.objective\.kl_weight=0\.1 .* learner\.count=2"):
        load_recipe(QUICKSTART, [several, divergence])
