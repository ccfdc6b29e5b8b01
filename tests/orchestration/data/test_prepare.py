"""What is wrong with a run's data is said before anything starts."""

import json
from pathlib import Path

import pytest

from orchestration.data.prepare import check_data, prepare_data
from orchestration.data.rows import DataError
from orchestration.recipe import ModelSettings, Recipe
from orchestration.recipe_loading import load_recipe
from orchestration.tiny_model import write_tokenizer
from policies.chat_format import TemplateUnusable
from tests.orchestration.test_recipe import QUICKSTART

LONG = "How much is 12 + 34" + " + 56" * 200 + "?"
"""Of more tokens than a rollout of `rl-1` may have."""


def recipe_on(tmp_path: Path, *, training: list[str], held_out: list[str], count: int) -> Recipe:
    """The quickstart on data of one's own: `rl-1` on `training`, the evaluation on `held_out`."""
    overrides = [f"evaluation.count={count}"]
    for where, questions in (("stages.rl-1", training), ("evaluation", held_out)):
        path = tmp_path / f"{where}.jsonl"
        rows = [{"question": question, "answer": 1, "id": number} for number, question in enumerate(questions)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        overrides.append(f'{where}.problems={{ source = "dataset", dataset = {{ path = "{path}" }} }}')
    return load_recipe(QUICKSTART, overrides)


def prepared(recipe: Recipe, tmp_path: Path) -> tuple[Recipe, list[str]]:
    """The recipe with prepared files in `tmp_path/data`, and what was told."""
    told: list[str] = []
    write_tokenizer(tmp_path / "model", 256)
    return prepare_data(recipe, tmp_path / "model", tmp_path / "data", told.append), told


def test_sets_are_written_into_the_runs_folder(tmp_path: Path) -> None:
    recipe = recipe_on(tmp_path, training=["1 + 0?", "2 - 1?"], held_out=["1 * 1?"], count=1)
    found, told = prepared(recipe, tmp_path)
    assert found.evaluation.problems.dataset is not None
    assert found.evaluation.problems.dataset.path == str(tmp_path / "data" / "evaluation.jsonl")
    lines = (tmp_path / "data" / "rl-1.jsonl").read_text().splitlines()
    assert [json.loads(line)["question"] for line in lines] == ["1 + 0?", "2 - 1?"]
    assert told == ["rl-1: 2 problems of plain", "evaluation: 1 problems of plain"]


def test_a_training_problem_whose_prompt_leaves_no_room_is_left_out_and_counted(tmp_path: Path) -> None:
    recipe = recipe_on(tmp_path, training=["1 + 0?", LONG], held_out=["1 * 1?"], count=1)
    _, told = prepared(recipe, tmp_path)
    assert told[0] == "rl-1: 1 problems of plain; 1 with a prompt of limits.max_tokens = 192 or more"
    assert LONG not in (tmp_path / "data" / "rl-1.jsonl").read_text()


@pytest.mark.parametrize(
    ("training", "held_out", "complaint"),
    [
        (["1 + 0?"], ["1 * 1?"], "evaluation.count = 2, but its data set holds 1 problems; lower it"),
        (
            ["1 + 0?"],
            ["1 * 1?", LONG],
            r"evaluation.limits.max_tokens = 256, but the prompt of problem plain/1",
        ),
        ([LONG], ["1 * 1?", "2 * 2?"], "stages.rl-1.limits.max_tokens = 192, but no prompt of its data set is shorter"),
    ],
)
def test_data_that_a_run_would_fail_on_later_is_refused(
    tmp_path: Path, training: list[str], held_out: list[str], complaint: str
) -> None:
    recipe = recipe_on(tmp_path, training=training, held_out=held_out, count=2)
    with pytest.raises(DataError, match=complaint):
        prepared(recipe, tmp_path)
    with pytest.raises(DataError, match=complaint):
        check_data(recipe, lambda _: None)


def test_a_problem_that_is_not_asked_may_be_too_long(tmp_path: Path) -> None:
    prepared(recipe_on(tmp_path, training=["1 + 0?"], held_out=["1 * 1?", LONG], count=1), tmp_path)


def test_a_check_leaves_sets_of_the_hub_alone(tmp_path: Path) -> None:
    gsm8k = '{ source = "dataset", dataset = { name = "gsm8k" } }'
    chats = '{ kind = "fine_tune", steps = 1, limits = { max_tokens = 64 }, data = [{ name = "toolace" }] }'
    recipe = load_recipe(
        QUICKSTART, [f"stages.rl-1.problems={gsm8k}", f"evaluation.problems={gsm8k}", f"stages.chats={chats}"]
    )
    told: list[str] = []
    check_data(recipe, told.append)
    assert told == [
        "rl-1: gsm8k is on the hub, and not looked at",
        "chats: chats of the hub are not looked at",
        "evaluation: gsm8k is on the hub, and not looked at",
    ]


@pytest.mark.parametrize("where", ["stages.rl-1", "evaluation"])
def test_problems_that_are_made_have_to_fit_too(where: str) -> None:
    with pytest.raises(DataError, match=rf"{where}\.limits\.max_tokens = 12, but the prompt of problem arithmetic/"):
        check_data(load_recipe(QUICKSTART, [f"{where}.limits.max_tokens=12"]), lambda _: None)


def test_a_model_whose_template_hides_its_tools_is_told_of_once(tmp_path: Path) -> None:
    recipe = load_recipe(QUICKSTART)
    on_disk = recipe.model_copy(update={"model": ModelSettings(path=tmp_path / "model")})
    assert prepared(on_disk, tmp_path)[1] == [
        f"the chat template in {tmp_path / 'model'} does not list tools: the model is not told of any"
    ]
    assert prepared(on_disk.model_copy(update={"tools": ()}), tmp_path)[1] == []
    assert prepared(recipe, tmp_path)[1] == [], "one from scratch learns of them in SFT"


def test_a_model_whose_template_hides_what_tools_return_is_refused_where_there_are_tools(tmp_path: Path) -> None:
    model = tmp_path / "deaf"
    write_tokenizer(model, 256)
    template = (model / "chat_template.jinja").read_text()
    (model / "chat_template.jinja").write_text(
        template.replace("in messages -", "in messages if message.role != 'tool' -")
    )
    recipe = load_recipe(QUICKSTART).model_copy(update={"model": ModelSettings(path=model)})
    with pytest.raises(TemplateUnusable, match="drops a tool's result"):
        prepare_data(recipe, model, tmp_path / "data", lambda _: None)
    prepare_data(recipe.model_copy(update={"tools": ()}), model, tmp_path / "data", lambda _: None)


def test_a_set_that_is_nowhere_is_named_by_a_check(tmp_path: Path) -> None:
    missing = f'{{ source = "dataset", dataset = {{ path = "{tmp_path / "none.jsonl"}" }} }}'
    with pytest.raises(DataError, match=r"stages.rl-2.problems.dataset: no file at .*none\.jsonl"):
        check_data(load_recipe(QUICKSTART, [f"stages.rl-2.problems={missing}"]), lambda _: None)


SHORT_CHAT = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}]
LIMIT = "stages.chats.limits.max_tokens = 192"
LONG_CHAT = [{"role": "user", "content": LONG}, {"role": "assistant", "content": "2"}]


def recipe_on_chats(tmp_path: Path, chats: list[list[dict[str, str]]]) -> Recipe:
    """The quickstart with a first stage that learns from chats of 192 tokens at most."""
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in chats))
    stage = f'{{ kind = "fine_tune", steps = 1, limits = {{ max_tokens = 192 }}, data = [{{ path = "{path}" }}] }}'
    return load_recipe(QUICKSTART, [f"stages.chats={stage}"])


def test_chats_that_are_too_long_are_counted_before_the_run(tmp_path: Path) -> None:
    _, told = prepared(recipe_on_chats(tmp_path, [LONG_CHAT, SHORT_CHAT, LONG_CHAT]), tmp_path)
    assert told == ["chats: 3 chats", f"chats: 2 of the first 3 chats are longer than {LIMIT}"]


def test_one_chat_that_fits_is_looked_for_among_all(tmp_path: Path) -> None:
    _, told = prepared(recipe_on_chats(tmp_path, [*[LONG_CHAT] * 60, SHORT_CHAT]), tmp_path)
    assert told[1] == f"chats: 50 of the first 50 chats are longer than {LIMIT}"


def test_a_stage_all_of_whose_chats_are_too_long_is_refused(tmp_path: Path) -> None:
    recipe = recipe_on_chats(tmp_path, [LONG_CHAT] * 60)
    with pytest.raises(DataError, match=f"{LIMIT}, but all 60 chats of the stage are longer; raise it"):
        check_data(recipe, lambda _: None)
