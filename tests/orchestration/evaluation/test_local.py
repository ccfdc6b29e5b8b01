"""How problems are put to a local model, and what becomes of those that can't be played."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomli_w
import typer

from actors.tokenizer import PromptOptions, load_chat_format
from env.tool_call import JUPYTER_TOOL, PYTHON_TOOL
from orchestration.evaluation.answers import Answer, AnswerFile, Wanted, why_failed
from orchestration.evaluation.benchmarks import Benchmark, Settings
from orchestration.evaluation.commands import end_with_failures
from orchestration.evaluation.local import Manner, manner_of, prompts_that_fit, recipe_for
from orchestration.recipe import RecipeError
from orchestration.tiny_model import write_tokenizer
from policies.trajectory import Problem

SETTINGS = Settings(samples=2, temperature=0.6, max_turns=4, max_tokens=100)
SHORT = Problem(id="short", question="1 + 1?", gold="2")
LONG = Problem(id="long", question="x" * 100, gold="2")
BARE = Manner(PromptOptions(instructions=False, opening="<reason>"), None)


def benchmark(*problems: Problem) -> Benchmark:
    return Benchmark("gsm8k", "reasoning", SETTINGS, list(problems))


def samples(of: Benchmark) -> list[Wanted]:
    return [
        Wanted(of, of.settings, problem, sample) for problem in of.problems for sample in range(of.settings.samples)
    ]


def answered(wanted: Wanted, **fields: Any) -> Answer:
    right: dict[str, Any] = {"correct": True, "reason": "right", "finish": "answered"}
    return wanted.answer(parts=(), response_tokens=9, turns=1, calls=0, tool_errors=0, **right | fields)


def failed(wanted: Wanted, reason: str) -> Answer:
    return answered(wanted, correct=False, reason=reason, finish="failed")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Of a run that trained a notebook's user without instructions."""
    folder = tmp_path / "run" / "checkpoints" / "rl"
    write_tokenizer(folder, 256)
    limits = {"max_tokens": 256, "tool_response_characters": 77, "call": {"wall_seconds": 1.5}}
    recipe = {
        "name": "run",
        "model": {"path": str(folder)},
        "tools": [JUPYTER_TOOL],
        "prompt": {"instructions": False, "opening": "<think>"},
        "evaluation": {"limits": limits},
        "stages": {"rl": {"kind": "reinforce", "steps": 1, "limits": limits}},
    }
    (tmp_path / "run" / "recipe.toml").write_text(tomli_w.dumps(recipe))
    return folder


def test_a_checkpoint_is_asked_as_its_run_asked_it(checkpoint: Path) -> None:
    manner = manner_of(checkpoint, "reasoning", None, None)
    limits = manner.limits(samples(benchmark(SHORT))[0])
    assert manner.prompt == PromptOptions(instructions=False, opening="<think>")
    assert (limits.tools, limits.tool_response_characters, limits.call.wall_seconds) == ((JUPYTER_TOOL,), 77, 1.5)
    assert (limits.max_tokens, limits.max_turns) == (100, 4)  # the evaluation's own
    recipe = recipe_for(checkpoint, manner, 100, engine=(), generators=1, gpus=0, seed=0)
    assert (recipe.prompt, recipe.tools) == (manner.prompt, (JUPYTER_TOOL,))


def test_what_the_user_says_of_the_prompt_goes_before_what_the_run_did(checkpoint: Path) -> None:
    assert manner_of(checkpoint, "reasoning", True, "").prompt == PromptOptions(instructions=True, opening="")


def test_any_other_model_is_asked_as_the_benchmark_has_it(tmp_path: Path, checkpoint: Path) -> None:
    elsewhere = manner_of(tmp_path, "reasoning", None, None)
    assert elsewhere == Manner(PromptOptions(), None)
    assert elsewhere.limits(samples(benchmark(SHORT))[0]).tools == (PYTHON_TOOL,)
    assert manner_of(checkpoint, "plain", None, None) == Manner(PromptOptions(instructions=False, opening=""), None)


def test_a_prompt_that_leaves_no_room_is_an_answer_that_was_cut_off(checkpoint: Path) -> None:
    chat, kept = load_chat_format(str(checkpoint), BARE.prompt), list[Answer]()
    fitting = prompts_that_fit(samples(benchmark(LONG, SHORT)), chat, BARE, kept.append)
    assert [each.problem.id for each in fitting] == ["short", "short"]
    length = len(chat.prompt(LONG.question))
    assert length >= SETTINGS.max_tokens > len(chat.prompt(SHORT.question))
    assert [(each.key[1:], each.finish, each.correct) for each in kept] == [
        (("long", sample), "length", False) for sample in range(2)
    ]
    assert kept[0].reason == f"its prompt has {length} tokens, 100 are allowed in all"


def test_a_benchmark_whose_prompts_all_leave_no_room_is_refused(checkpoint: Path) -> None:
    chat = load_chat_format(str(checkpoint), BARE.prompt)
    with pytest.raises(RecipeError, match=r"gsm8k: no prompt leaves room .* within 100 tokens.*--max-tokens"):
        prompts_that_fit(samples(benchmark(LONG)), chat, BARE, lambda _: None)


def test_answers_that_failed_are_played_again_and_the_later_one_counts(tmp_path: Path) -> None:
    of = benchmark(SHORT)
    file = AnswerFile(tmp_path, {})
    first, second = file.missing([(of, SETTINGS)])
    file.add(failed(first, "the engine is gone"))
    file.add(answered(second))
    assert why_failed(file.answers.values()) == {"the engine is gone": 1}
    again = AnswerFile(tmp_path, {})
    assert again.missing([(of, SETTINGS)]) == [first]
    again.add(answered(first))
    answers = AnswerFile(tmp_path, {}).answers
    assert len(answers) == 2 and all(each.correct for each in answers.values()) and not why_failed(answers.values())


def test_a_command_whose_answers_failed_says_why_and_ends_with_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    of = samples(benchmark(SHORT, LONG))
    end_with_failures([answered(of[0])])
    assert capsys.readouterr().err == ""
    with pytest.raises(typer.Exit) as ended:
        end_with_failures([answered(of[0]), *(failed(each, "the engine is [gone]") for each in of[1:])])
    told = capsys.readouterr().err
    assert ended.value.exit_code == 1
    assert "3 answers failed" in told and "3 x the engine is [gone]" in told


def test_other_settings_are_refused_only_where_there_are_answers(tmp_path: Path) -> None:
    AnswerFile(tmp_path, {"max_tokens": 256})
    file = AnswerFile(tmp_path, {"max_tokens": 512})
    file.add(failed(file.missing([(benchmark(SHORT), SETTINGS)])[0], ""))
    with pytest.raises(RecipeError, match="max_tokens: 512, now 256"):
        AnswerFile(tmp_path, {"max_tokens": 256})
