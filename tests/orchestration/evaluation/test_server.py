"""Dialogues against a scripted server: real sandbox, real verdicts, and a file that goes on where it was cut off."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from fastapi import Response

from orchestration.evaluation.answers import ANSWERS_FILE, AnswerFile
from orchestration.evaluation.benchmarks import Benchmark, Graded, Settings
from orchestration.evaluation.completions import AT_ONCE
from orchestration.evaluation.server import Server
from orchestration.recipe import RecipeError
from policies.demonstrations import call_text
from policies.trajectory import Problem
from tests.support.scripted_chat_server import scripted_chat_server

PROBLEMS = [
    Problem(id="p/product", question="What is 123 * 456?", gold="56088", family="product"),
    Problem(id="p/half", question="Half of one?", gold="\\frac{1}{2}", family="half"),
    Problem(id="p/long", question="Tell me everything.", gold="1", family="long"),
    Problem(id="p/loop", question="Loop.", gold="1", family="loop"),
]
SETTINGS = Settings(samples=2, temperature=0.6, max_turns=2, max_tokens=500)
BENCHMARK = Benchmark("made-up", "reasoning", SETTINGS, PROBLEMS)
CALL = call_text("print(123 * 456)")


def script(messages: list[dict[str, Any]], _: dict[str, Any]) -> tuple[str, str]:
    question, last = messages[1]["content"], messages[-1]["content"]
    if "everything" in question:
        return "word " * 30, "length"
    if "Half" in question:
        return "<answer>\\boxed{0.5}</answer>", "stop"
    if "Loop" not in question and "56088" in last:
        return "<answer>\\boxed{56088}</answer>", "stop"
    return CALL, "stop"


async def play(url: str, file: AnswerFile, benchmark: Benchmark = BENCHMARK, name: str | None = None) -> None:
    await Server(url, name, "none").play(file.missing([(benchmark, benchmark.settings)]), file.add)


async def test_code_runs_here_and_answers_are_judged(tmp_path: Path) -> None:
    file = AnswerFile(tmp_path, {"a": 1})
    async with scripted_chat_server(script) as url:
        await play(url, file)
    by_problem = {answer.problem: answer for answer in file.answers.values()}
    assert len(file.answers) == 8
    product = by_problem["p/product"]
    assert (product.correct, product.finish, product.turns, product.calls, product.tool_errors) == (
        True,
        "answered",
        2,
        1,
        0,
    )
    assert "56088" in product.parts[1].text and product.parts[1].who == "tool"
    assert by_problem["p/half"].correct and by_problem["p/half"].extracted == "0.5"
    assert (by_problem["p/long"].finish, by_problem["p/long"].response_tokens) == ("length", 30)
    assert by_problem["p/loop"].finish == "turns" and not by_problem["p/loop"].correct


async def test_an_evaluation_goes_on_where_it_was_cut_off(tmp_path: Path) -> None:
    asked: list[str] = []

    def counting(messages: list[dict[str, Any]], request: dict[str, Any]) -> tuple[str, str]:
        asked.append(messages[1]["content"])
        return script(messages, request)

    only_half = Benchmark("made-up", "reasoning", SETTINGS, PROBLEMS[1:2])
    async with scripted_chat_server(counting) as url:
        await play(url, AnswerFile(tmp_path, {"a": 1}), only_half)
        path = tmp_path / ANSWERS_FILE
        path.write_bytes(path.read_bytes()[:-10])  # killed while it wrote its second answer
        asked.clear()
        again = AnswerFile(tmp_path, {"a": 1})
        assert len(again.answers) == 1
        await play(url, again, only_half)
    assert len(asked) == 1 and len(AnswerFile(tmp_path, {"a": 1}).answers) == 2
    assert len([json.loads(line) for line in path.read_text().splitlines()]) == 2


async def test_answers_are_not_taken_for_those_to_another_problem_of_the_same_id(tmp_path: Path) -> None:
    half = Benchmark("made-up", "reasoning", SETTINGS, PROBLEMS[1:2])
    async with scripted_chat_server(script) as url:
        await play(url, AnswerFile(tmp_path, {}), half)
    other = dataclasses.replace(half, problems=[PROBLEMS[1].model_copy(update={"question": "Half of two?"})])
    with pytest.raises(RecipeError, match="another problem p/half"):
        AnswerFile(tmp_path, {}).missing([(other, SETTINGS)])
    assert AnswerFile(tmp_path, {}).missing([(half, SETTINGS)]) == []


async def test_each_turn_draws_from_a_stream_of_its_own_and_an_evaluation_repeats_them(tmp_path: Path) -> None:
    seeds: list[int] = []

    def noting(messages: list[dict[str, Any]], request: dict[str, Any]) -> tuple[str, str]:
        seeds.append(request["seed"])
        return script(messages, request)

    async with scripted_chat_server(noting) as url:
        await play(url, AnswerFile(tmp_path / "once", {}))
        once, seeds = sorted(seeds), []
        await play(url, AnswerFile(tmp_path / "again", {}))
    assert len(once) == len(set(once)) == 2 * (2 + 1 + 1 + 2)
    assert sorted(seeds) == once and 0 <= once[0] and once[-1] < 1 << 63


async def test_a_rule_grader_reads_the_plain_response(tmp_path: Path) -> None:
    def graded(response: str) -> Graded:
        return Graded("boxed" in response, "no box", {"words": 1.0})

    plain = Benchmark("rules", "plain", Settings(1, 0.0, 1, 50), PROBLEMS[:1], {"p/product": graded})

    def shout(messages: list[dict[str, Any]], request: dict[str, Any]) -> tuple[str, str]:
        assert messages == [{"role": "user", "content": PROBLEMS[0].question}] and request["temperature"] == 0
        return CALL + " boxed", "stop"

    file = AnswerFile(tmp_path, {})
    async with scripted_chat_server(shout) as url:
        await play(url, file, plain)
    (answer,) = file.answers.values()
    assert (answer.correct, answer.calls, answer.finish, answer.figures) == (True, 0, "answered", {"words": 1.0})


async def test_a_server_that_can_not_be_used_says_why(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="can't be reached"):
        await play("http://127.0.0.1:9/v1", AnswerFile(tmp_path / "a", {}))
    async with scripted_chat_server(script, ("one", "two")) as url:
        with pytest.raises(RecipeError, match="one, two"):
            await play(url, AnswerFile(tmp_path / "b", {}))
        with pytest.raises(RecipeError, match=r"refuses.*404"):
            await play(url, AnswerFile(tmp_path / "b", {}), name="three")


def completion(message: dict[str, Any], finish: str = "stop", **more: Any) -> Response:
    choices = [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}]
    return Response(json.dumps({"choices": choices, **more}), media_type="application/json")


BOX = "<answer>\\boxed{56088}</answer>"
MISBEHAVIOUR = {
    "refuses: Error code: 400": Response('{"error": {"message": "too long"}}', 400, media_type="application/json"),
    "Expected value|expected value": Response("<html>log in</html>", media_type="text/html"),
    "EOF": Response('{"choices": [', media_type="application/json"),
    "hex escape": Response('{"choices": [{"message": {"content": "\\ud800"}}]}', media_type="application/json"),
    "invalid unicode": Response(b'{"choices": ["\xe9"]}', media_type="application/json"),
    "choices: List should have at least 1 item": Response('{"choices": []}', media_type="application/json"),
    "choices: Field required.*sad": Response('{"error": "sad"}', media_type="application/json"),
    "choices.0.message.content": completion({"content": [{"type": "text", "text": BOX}]}),
    "completion_tokens": completion({"content": BOX}, usage={"completion_tokens": -5}),
    "withheld": completion({"content": ""}, "content_filter"),
    "parser of calls": completion({"content": None, "tool_calls": [{"function": {"name": "f"}}]}, "tool_calls"),
}


@pytest.mark.parametrize("told", MISBEHAVIOUR)
async def test_what_a_server_fails_to_answer_is_no_wrong_answer_and_is_asked_again(told: str, tmp_path: Path) -> None:
    misbehaves = True

    def sometimes(messages: list[dict[str, Any]], request: dict[str, Any]) -> tuple[str, str] | Response:
        return MISBEHAVIOUR[told] if misbehaves and "123" in messages[1]["content"] else script(messages, request)

    two = Benchmark("made-up", "reasoning", SETTINGS._replace(samples=1), PROBLEMS[:2])
    async with scripted_chat_server(sometimes) as url:
        await play(url, file := AnswerFile(tmp_path, {}), two)
        failed, half = (file.answers["made-up", problem.id, 0] for problem in PROBLEMS[:2])
        assert (failed.finish, failed.correct, half.correct) == ("failed", False, True)
        assert re.search(told, failed.reason)
        misbehaves = False
        await play(url, file := AnswerFile(tmp_path, {}), two)
    assert all(answer.correct for answer in file.answers.values())


async def test_a_server_that_fails_every_request_ends_the_evaluation(tmp_path: Path) -> None:
    asked: list[str] = []

    def never(messages: list[dict[str, Any]], _: dict[str, Any]) -> Response:
        asked.append(messages[1]["content"])
        return Response("full", 400)

    many = Benchmark("made-up", "reasoning", SETTINGS._replace(samples=100), PROBLEMS)
    async with scripted_chat_server(never) as url:
        with pytest.raises(RecipeError, match=r"32 requests in a row failed.*400"):
            await play(url, file := AnswerFile(tmp_path, {}), many)
    assert len(asked) < 3 * AT_ONCE
    assert len(file.answers) < 3 * AT_ONCE and {answer.finish for answer in file.answers.values()} == {"failed"}


async def test_tokens_that_a_server_does_not_count_are_told_of(tmp_path: Path) -> None:
    uncounted = Benchmark("made-up", "reasoning", SETTINGS._replace(samples=1), PROBLEMS[:1])
    async with scripted_chat_server(lambda *_: completion({"content": BOX})) as url:
        await play(url, file := AnswerFile(tmp_path, {}), uncounted)
    (answer,) = file.answers.values()
    assert (answer.correct, answer.response_tokens, answer.figures) == (True, 0, {"turns_without_token_count": 1.0})
