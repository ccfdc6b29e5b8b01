"""The commands print what they are asked for, and their exit codes tell what happened."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from actors.storage.reader import Archive, segment_path
from actors.storage.writer import ArchiveWriter
from orchestration.archive.export import read_jsonl, read_parquet
from orchestration.cli import app
from policies.trajectory import Problem, Trajectory
from tests.orchestration.archive.dialogues import PROMPT, text_span, text_trajectory
from tests.orchestration.archive.test_page import data_of


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


@pytest.fixture
def folder(archive: Archive) -> Path:
    return archive.folder.parent


CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
HOSTILE = "\x1b]0;title\x07\x1b[2J\r\x08 \x9b \u202e [red]x[/] [/y] "


@pytest.fixture
def hostile(tmp_path: Path, dialogues: list[Trajectory]) -> Archive:
    """An archive in which every name and every text would control a terminal; one of its two rollouts is damaged."""
    writer = ArchiveWriter(tmp_path / "hostile" / "archive")
    for number, each in enumerate(dialogues[1:3]):
        named = {"id": f"{HOSTILE}{number}", "group": HOSTILE, "stage": f"{HOSTILE}s", "generator": HOSTILE}
        problem = Problem(id=HOSTILE, question=HOSTILE, gold=HOSTILE, family=HOSTILE)
        verdict = each.verdict.model_copy(update={"extracted": HOSTILE})
        writer.append(each.model_copy(update=named | {"problem": problem, "verdict": verdict}))
    writer.close()
    archive = Archive(tmp_path / "hostile" / "archive")
    flip(archive, 1)
    return archive


def flip(archive: Archive, number: int) -> None:
    """Flip a bit of a stored trajectory."""
    path = segment_path(archive.folder, 0)
    data = bytearray(path.read_bytes())
    data[archive.rows[number].offset + 20] ^= 8
    path.write_bytes(data)


def test_verify_tells_a_whole_archive_from_a_torn_and_a_damaged_one(archive: Archive, folder: Path) -> None:
    whole = run("archive", "verify", folder)
    assert (whole.exit_code, "4 trajectories, no damage" in whole.output) == (0, True)
    path = segment_path(archive.folder, 0)
    data = path.read_bytes()
    path.write_bytes(data[:-5])
    torn = run("archive", "verify", folder)
    assert torn.exit_code == 0
    assert f"torn: segment-00000.gra, byte {archive.rows[3].offset} (trajectory rl/0/0/3)" in torn.output
    path.write_bytes(data)
    flip(archive, 1)
    damaged = run("archive", "verify", folder, "--json")
    assert damaged.exit_code == 1
    told = json.loads(damaged.output)
    assert (told["damaged"], told["trajectories"]) == (True, 3)
    (flaw,) = told["segments"][0]["flaws"]
    assert (flaw["segment"], flaw["offset"], flaw["ids"]) == (path.name, archive.rows[1].offset, ["rl/0/0/1"])


@pytest.mark.parametrize(("name", "read"), [("out.parquet", read_parquet), ("out.jsonl", read_jsonl)])
def test_export_writes_the_selection(
    folder: Path, tmp_path: Path, dialogues: list[Trajectory], name: str, read
) -> None:
    done = run("archive", "export", folder, tmp_path / name, "--where", "verdict=right")
    assert done.exit_code == 0 and "2 trajectories in" in done.output
    assert list(read(tmp_path / name)) == dialogues[:2]


def test_export_stops_at_damage_and_names_it(archive: Archive, folder: Path, tmp_path: Path) -> None:
    flip(archive, 1)
    done = run("archive", "export", folder, tmp_path / "out.jsonl")
    assert done.exit_code == 1 and "(trajectory rl/0/0/1): the frame fails its checksum" in done.stderr
    assert not list(tmp_path.glob("out.jsonl*"))


def test_what_is_whole_is_exported_and_analysed_when_asked_for(
    archive: Archive, folder: Path, tmp_path: Path, dialogues: list[Trajectory]
) -> None:
    flip(archive, 1)
    done = run("archive", "export", folder, tmp_path / "out.jsonl", "--skip-damaged")
    assert done.exit_code == 0 and "DAMAGED" in done.stderr and "rl/0/0/1" in done.stderr
    assert list(read_jsonl(tmp_path / "out.jsonl")) == [dialogues[0], *dialogues[2:]]
    assert run("analyse", folder).exit_code == 1
    assert json.loads(run("analyse", folder, "--skip-damaged", "--json").stdout)["trajectories"] == 3


@pytest.mark.parametrize("arguments", [["show", "FOLDER", "--html"], ["archive", "export", "FOLDER"]])
@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir])
def test_nothing_but_a_file_is_replaced_and_no_part_of_one_is_left(
    folder: Path, tmp_path: Path, arguments: list[str], make: Callable[[Path], None]
) -> None:
    place = tmp_path / "there.jsonl"
    make(place)
    done = run(*(str(folder) if each == "FOLDER" else each for each in arguments), place)
    assert done.exit_code == 2 and "is not a file" in " ".join(done.output.replace("│", " ").split())
    assert place.exists() and not place.is_file()
    assert not list(tmp_path.glob("*.partial"))


def test_stats_counts_by_stage(folder: Path) -> None:
    (stage,) = json.loads(run("archive", "stats", folder, "--json").output)
    assert (stage["stage"], stage["trajectories"], stage["failed_share_in_wrong"]) == ("rl", 4, 1.0)
    assert "stored trajectories" in run("archive", "stats", folder).output


def test_index_makes_the_index_of_an_archive_that_has_none(archive: Archive, folder: Path) -> None:
    (archive.folder / "segment-00000.idx").unlink()
    assert "4 trajectories indexed" in run("archive", "index", folder).output
    assert Archive(archive.folder).unindexed == 0


def test_show_lists_a_page_and_opens_one(folder: Path) -> None:
    page = run("show", folder, "--sort", "length", "--reverse", "--page-size", 1, "--page", 2, "--json")
    listed = json.loads(page.output)
    assert (listed["selected"], listed["page"], listed["pages"]) == (4, 2, 4)
    assert [row["id"] for row in listed["rows"]] == ["rl/0/0/0"]
    assert "1-2 of 2 trajectories (of 4 in the archive)" in run("show", folder, "-w", "errors=1..").output
    opened = run("show", folder, "--open", "rl/0/0/1").output
    assert "What is 6 times 7?" in opened and "NameError: name 'show' is not defined" in opened
    row = json.loads(run("show", folder, "--open", "rl/0/0/1", "--json").output)
    assert [call["status"] for call in row["calls"]] == ["error", "success"]


def test_show_writes_a_page(folder: Path, tmp_path: Path) -> None:
    done = run("show", folder, "--html", tmp_path / "page.html", "-w", "verdict=wrong")
    assert done.exit_code == 0 and "All 2 trajectories where verdict=wrong" in done.output
    assert (tmp_path / "page.html").exists()


def test_analyse_answers_in_tables_and_in_json(folder: Path) -> None:
    tables = run("analyse", folder).output
    assert "NameError" in tables and "unknown" in tables and "\x1b" not in tables
    found = json.loads(run("analyse", folder, "--json").output)
    assert found["stages"][0]["wrong"]["failed"] == 2
    assert "no trajectory was selected" in run("analyse", folder, "-w", "stage=none").output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "FOLDER", "-w", "colour=red"], "there is no field 'colour'"),
        (["show", "FOLDER", "--sort", "colour"], "there is no field 'colour'"),
        (["show", "FOLDER", "--open", "nobody"], "the archive holds no trajectory 'nobody'"),
        (["show", "nowhere"], "there is no archive at nowhere"),
        (["archive", "verify", "nowhere"], "there is no archive at nowhere"),
        (["archive", "export", "FOLDER", "out.csv"], "out.csv ends in neither .jsonl nor .parquet"),
        (["analyse", "FOLDER", "--model", "nowhere"], "nowhere holds no tokenizer.json"),
    ],
)
def test_unusable_input_is_refused_with_what_would_be_right(folder: Path, arguments: list[str], message: str) -> None:
    done = run(*(str(folder) if each == "FOLDER" else each for each in arguments))
    assert done.exit_code == 2
    plain = " ".join(done.output.replace("│", " ").split())
    assert message in plain


def test_a_torn_archive_is_read_and_said_to_be_torn(archive: Archive, folder: Path) -> None:
    path = segment_path(archive.folder, 0)
    path.write_bytes(path.read_bytes()[:-5])
    done = run("show", folder, "--json")
    assert done.exit_code == 0 and "torn: segment-00000.gra" in done.stderr
    assert json.loads(done.stdout)["selected"] == 3


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        (0, ["show", "FOLDER"]),
        (0, ["show", "FOLDER", "--open", f"{HOSTILE}0", "--tokens"]),
        (1, ["show", "FOLDER", "--open", f"{HOSTILE}1"]),
        (1, ["archive", "verify", "FOLDER"]),
        (0, ["archive", "stats", "FOLDER"]),
        (0, ["archive", "export", "FOLDER", "out.parquet", "--skip-damaged"]),
        (0, ["analyse", "FOLDER", "--skip-damaged"]),
        (1, ["analyse", "FOLDER"]),
        (2, ["analyse", "FOLDER", "--between", "a,b"]),
    ],
)
def test_nothing_that_an_archive_holds_controls_the_terminal(
    hostile: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*(hostile.folder.parent if each == "FOLDER" else each for each in arguments))
    assert (done.exit_code, CONTROLS.search(done.output)) == (code, None)
    assert "␛" in done.output


@pytest.mark.parametrize("logprob", [float("nan"), float("-inf"), 2.0**100])
def test_numbers_that_no_engine_should_give_are_shown(tmp_path: Path, logprob: float) -> None:
    writer = ArchiveWriter(tmp_path / "run" / "archive")
    writer.append(text_trajectory(0, PROMPT, text_span("model", "42", logprob=logprob)))
    writer.close()
    for options in ([], ["--tokens"]):
        assert run("show", tmp_path / "run", "--open", "rl/0/0/0", *options).exit_code == 0
    assert run("show", tmp_path / "run", "--html", tmp_path / "page.html").exit_code == 0
    (held,) = data_of(tmp_path / "page.html")["trajectories"]
    assert held["steps"][1]["logprobs"] == ([None, None] if logprob < 0 or logprob != logprob else [logprob] * 2)
