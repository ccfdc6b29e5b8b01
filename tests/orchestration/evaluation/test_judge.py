"""Arena-Hard: a judge on a local server compares answers with a baseline's; its model is scripted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi import Response
from typer.testing import CliRunner

from orchestration.cli import app
from orchestration.data.rows import DataError
from orchestration.evaluation.answers import Answer, AnswerFile, why_failed
from orchestration.evaluation.benchmarks import Benchmark, load_benchmark
from orchestration.evaluation.judge import JUDGEMENTS_FILE, Judge, Judgement, JudgementFile, verdict_in
from orchestration.evaluation.server import Server
from orchestration.evaluation.summary import summarise
from orchestration.recipe import RecipeError
from tests.support.scripted_chat_server import scripted_chat_server

QUESTIONS = ("write a poem", "sort a list", "name a river", "say nothing")


def arena(folder: Path, questions: tuple[str, ...] = QUESTIONS) -> Path:
    """A folder of the benchmark's shape."""
    answers = folder / "model_answer"
    answers.mkdir(parents=True)
    rows = [{"question_id": text, "category": "c", "cluster": "d", "turns": [{"content": text}]} for text in questions]
    (folder / "question.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rows = [
        {"question_id": text, "choices": [{"index": 0, "turns": [{"content": f"baseline: {text}"}]}]}
        for text in QUESTIONS
    ]
    (answers / "gpt-4-0314.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def model(messages: list[dict[str, Any]], _: dict[str, Any]) -> tuple[str, str]:
    return f"ours: {messages[0]['content']}", "stop"


def judge(messages: list[dict[str, Any]], request: dict[str, Any]) -> tuple[str, str]:
    """Clearly ours for poems; A, whoever that is, for lists; slightly the baseline's for rivers; else no verdict."""
    (message,) = messages
    text, ours_is_a = message["content"], message["content"].index("ours: ") < message["content"].index("baseline: ")
    assert request["temperature"] == 0
    if "poem" in text:
        return f"[[A=B]]? No. [[{'A>>B' if ours_is_a else 'B>>A'}]]", "stop"
    if "list" in text:
        return "[[A>B]]", "stop"
    if "river" in text:
        return f"[[{'B>A' if ours_is_a else 'A>B'}]]", "stop"
    return "A is better", "stop"


async def played(folder: Path, benchmark: Benchmark) -> list[Answer]:
    file = AnswerFile(folder, {})
    async with scripted_chat_server(model) as url:
        await Server(url, None, "none").play(file.missing([(benchmark, benchmark.settings)]), file.add)
    return list(file.answers.values())


async def test_each_answer_plays_both_places_and_judging_goes_on_where_it_was_cut_off(tmp_path: Path) -> None:
    benchmark = load_benchmark("arena-hard", str(arena(tmp_path / "arena")), None)
    answers = await played(tmp_path, benchmark)
    games: list[str] = []

    def noting(messages: list[dict[str, Any]], request: dict[str, Any]) -> tuple[str, str]:
        games.append(messages[0]["content"])
        return judge(messages, request)

    file = JudgementFile(tmp_path)
    async with scripted_chat_server(noting) as url:
        await Judge(url, None, "none").compare(file.missing(answers), benchmark.baseline, file.add)
        assert len(games) == len(set(games)) + 2 == 2 * 4 + 2, "what has no verdict is asked again, once"
        path = tmp_path / JUDGEMENTS_FILE
        path.write_bytes(path.read_bytes()[:-7])  # killed while it wrote the last one
        games.clear()
        file = JudgementFile(tmp_path)
        (cut_off,) = file.missing(answers)
        await Judge(url, None, "none").compare([cut_off], benchmark.baseline, file.add)
    assert games and all(cut_off.question in game for game in games)

    judged = {answer.question: answer for answer in map(JudgementFile(tmp_path).judged, answers)}
    assert {question: answer.score for question, answer in judged.items()} == {
        "write a poem": 1.0,
        "sort a list": 0.5,
        "name a river": 0.0,
        "say nothing": 0.5,
    }
    assert [answer.question for answer in judged.values() if answer.correct] == ["write a poem"]
    summary = summarise("arena-hard", judged.values(), 1, values=False)
    assert (summary.average.mean, summary.figures) == (0.5, {"undecided": 0.25})
    assert summary.average.low < 0.5 < summary.average.high


def test_a_clear_verdict_counts_three_times() -> None:
    def score(as_a: Any, as_b: Any) -> float:
        return Judgement(benchmark="b", problem="p", sample=0, as_a=as_a, as_b=as_b, texts=("", "")).score

    assert score("A>>B", "A>B") == 3 / 4
    assert score("A>B", "A>>B") == 1 / 4
    assert score("B>>A", "B>A") == 1 / 4
    assert score("A>B", "A=B") == 3 / 4
    assert (verdict_in("[[A>B]] then [[B>A]]"), verdict_in("A>B")) == ("B>A", "undecided")


def test_an_answer_that_was_not_played_is_lost_without_a_judge(tmp_path: Path) -> None:
    asked = {"benchmark": "arena-hard", "problem": "p", "family": "f", "question": "q", "gold": "g", "sample": 0}
    played = {"parts": (), "correct": False, "reason": "lost", "finish": "failed", "response_tokens": 0}
    answer = Answer.model_validate(asked | played | {"turns": 0, "calls": 0, "tool_errors": 0})
    assert JudgementFile(tmp_path).missing([answer]) == [] and answer.credit == 0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--on", "arena-hard"], "give --judge URL"),
        (["--on", "arena-hard", "--judge", "http://127.0.0.1:9/v1"], "--data arena-hard=FOLDER"),
        (["--on", "math500", "--judge", "http://127.0.0.1:9/v1"], "--judge is for arena-hard"),
    ],
)
def test_what_a_judge_needs_is_said(options: list[str], told: str, tmp_path: Path) -> None:
    server = ["--server", "http://127.0.0.1:9/v1", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, ["evaluate", *server, *options])
    assert isinstance(result.exception, RecipeError) and told in str(result.exception)


async def test_a_judge_that_can_not_be_used_says_why(tmp_path: Path) -> None:
    benchmark = load_benchmark("arena-hard", str(arena(tmp_path / "arena")), 1)
    answers = await played(tmp_path, benchmark)
    with pytest.raises(RecipeError, match="can't be reached"):
        await Judge("http://127.0.0.1:9/v1", "any", "none").compare(answers, benchmark.baseline, print)
    async with scripted_chat_server(judge, ("one", "two")) as url:
        with pytest.raises(RecipeError, match="one, two; choose one with --judge-model"):
            await Judge(url, None, "none").compare(answers, benchmark.baseline, print)


async def test_what_a_judge_fails_to_judge_is_no_tie_and_is_judged_again(tmp_path: Path) -> None:
    benchmark = load_benchmark("arena-hard", str(arena(tmp_path / "arena")), 2)
    answers = await played(tmp_path, benchmark)

    def refusing(messages: list[dict[str, Any]], request: dict[str, Any]) -> tuple[str, str] | Response:
        return Response("too long", 400) if "poem" in messages[0]["content"] else judge(messages, request)

    file = JudgementFile(tmp_path)
    async with scripted_chat_server(refusing) as url:
        failed = await Judge(url, None, "none").compare(file.missing(answers), benchmark.baseline, file.add)
    ((key, reason),) = failed.items()
    assert key[1] == "arena-hard/write a poem" and "400" in reason
    assert [answer.key for answer in JudgementFile(tmp_path).missing(answers)] == [key]
    judged = [file.judged(answer, failed.get(answer.key)) for answer in answers]
    assert [why for why in why_failed(judged) if "could not be judged: the server refuses" in why]
    assert summarise("arena-hard", judged, 1, values=False).failed == 1


def test_other_shapes_of_the_data_are_refused_with_file_and_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"question.jsonl line 5: gpt-4-0314 has no answer to 'more'"):
        load_benchmark("arena-hard", str(arena(tmp_path / "a", (*QUESTIONS, "more"))), None)
    with pytest.raises(DataError, match=r"question.jsonl line 2: question_id sort a list comes again"):
        load_benchmark("arena-hard", str(arena(tmp_path / "b", ("sort a list", "sort a list"))), None)
    folder = arena(tmp_path / "c")
    (folder / "question.jsonl").write_text(json.dumps({"question_id": QUESTIONS[0], "turns": []}) + "\n")
    with pytest.raises(DataError, match=r"question.jsonl line 1: 'turns' is not one turn"):
        load_benchmark("arena-hard", str(folder), None)
