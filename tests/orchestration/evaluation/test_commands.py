"""`greenroom evaluate` and `greenroom data filter`, as one types them."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestration.cli import app
from orchestration.recipe import RecipeError
from orchestration.tiny_model import write_tokenizer
from tests.support.scripted_chat_server import scripted_chat_server


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    path = tmp_path / "two.jsonl"
    rows = [{"question": f"What is {n} + 1?", "answer": f"#### {n + 1}"} for n in range(2)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """One that takes 256 tokens, without weights."""
    folder = tmp_path / "model"
    write_tokenizer(folder, 256)
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 256}))
    return folder


async def run(*arguments: str) -> tuple[str, str]:
    """What the command writes; it must succeed."""
    command = [sys.executable, "-m", "orchestration.cli", *arguments]
    piped = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=piped, stderr=piped)
    said, told = await process.communicate()
    assert process.returncode == 0, told.decode()
    return said.decode(), told.decode()


@pytest.mark.slow
async def test_a_served_model_is_evaluated_and_only_what_is_missing_is_asked_again(
    tmp_path: Path, problems: Path
) -> None:
    asked: list[str] = []

    def script(messages: list[dict[str, Any]], _: dict[str, Any]) -> tuple[str, str]:
        asked.append(messages[-1]["content"])
        return "<answer>\\boxed{2}</answer>", "stop"

    out = tmp_path / "out"
    async with scripted_chat_server(script) as url:
        options = ["--server", url, "--on", "gsm8k", "--data", f"gsm8k={problems}", "--samples", "2", "--out", str(out)]
        shown, told = await run("evaluate", *options, "--limit", "1")
        assert "4 answers" not in told and "2 answers, 0 of them there already" in told and "0.0%" in shown
        printed, told = await run("evaluate", *options, "--json")
    assert "4 answers, 2 of them there already" in told and len(asked) == 4
    (figures,) = json.loads(printed)["benchmarks"]
    assert (figures["problems"], figures["average"]["mean"], figures["pass_at"]["2"]["mean"]) == (2, 0.5, 0.5)
    assert json.loads((out / "summary.json").read_text()) == json.loads(printed)
    assert "What is 1 + 1?" in (out / "report.html").read_text()


def test_more_tokens_than_the_model_takes_are_refused_before_anything_is_written(
    tmp_path: Path, problems: Path, model: Path
) -> None:
    data = ["--model", str(model), "--max-tokens", "300", "--out", str(tmp_path / "out")]
    for command in (
        ["evaluate", "--on", "gsm8k", "--data", f"gsm8k={problems}"],
        ["data", "filter", str(problems), "--as", "gsm8k"],
    ):
        error = CliRunner().invoke(app, [*command, *data]).exception
        assert isinstance(error, RecipeError) and "give --max-tokens 256" in str(error)
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ([], "either --model"),
        (["--model", "m", "--server", "http://localhost"], "either --model"),
        (["--server", "http://localhost", "--temperature", "0"], "--samples 1"),
        (["--server", "http://localhost", "--data", "aime24=a.jsonl"], "aime24, which --on does not"),
    ],
)
def test_options_that_make_no_sense_are_refused(problems: Path, options: list[str], complaint: str) -> None:
    given = ["evaluate", "--on", "gsm8k", "--data", f"gsm8k={problems}", *options]
    error = CliRunner().invoke(app, given).exception
    assert isinstance(error, RecipeError) and complaint in str(error)
