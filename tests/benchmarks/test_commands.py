"""What the documentation says to type is understood, and what it says is there, is there.

Nothing is run but parsers: whether the benchmarks measure what they say is seen when they are run.
"""

from __future__ import annotations

import importlib
import itertools
import re
import shlex
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from orchestration.cli import app

PROJECT = Path(__file__).parents[2]
PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))]
COMMANDS = sorted(
    path.stem for path in (PROJECT / "benchmarks").glob("*.py") if "\ndef arguments()" in path.read_text()
)
HEAVY = ("torch", "ray", "vllm", "transformers", "math_verify")
"""Packages that take seconds to import."""


def documented(start: str) -> Iterator[tuple[str, list[str]]]:
    """Where, and the words of each command with this beginning, in the indented blocks of pages and benchmarks."""
    sources = [*PAGES, *sorted((PROJECT / "benchmarks").glob("*.py"))]
    for path in sources:
        for line in re.sub(r"\\\n *", "", path.read_text()).splitlines():
            if line.startswith("    " + start) and "..." not in line:
                words = shlex.split(line.removeprefix("    " + start), comments=True)
                words = words[: words.index(">")] if ">" in words else words  # the rest is the shell's
                for chosen in itertools.product(*(_alternatives(word) for word in words)):
                    yield str(path.relative_to(PROJECT)), list(chosen)


def _alternatives(word: str) -> list[str]:
    return word.split("|") if re.fullmatch(r"[a-z]+(\|[a-z]+)+", word) else [word]


def parser_of(name: str) -> ArgumentParser:
    return importlib.import_module(f"benchmarks.{name}").arguments()


def understood(parser: ArgumentParser, words: list[str]) -> bool:
    try:
        parser.parse_args(words)
    except SystemExit:  # it has told on standard error what it did not understand
        return False
    return True


def test_a_benchmark_s_parser_is_made_without_what_takes_long_to_import() -> None:
    imports = "; ".join(f"import benchmarks.{name}; benchmarks.{name}.arguments()" for name in COMMANDS)
    code = f"import sys; {imports}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


def test_whatever_in_benchmarks_can_be_run_has_a_parser_that_is_checked_here() -> None:
    programs = {path.stem for path in (PROJECT / "benchmarks").glob("*.py") if "__main__" in path.read_text()}
    assert programs - set(COMMANDS) == {"trl_grpo"}  # the other side of vs_trl, which has nothing of ours
    for name in COMMANDS:
        assert f"    python -m benchmarks.{name}" in parser_of(name).format_help(), "the module says how it is run"


def test_each_benchmark_that_can_be_run_is_found_in_the_documentation() -> None:
    text = "".join(page.read_text() for page in PAGES)
    assert [name for name in COMMANDS if not re.search(rf"\bbenchmarks[./]{name}\b", text)] == []
    named = set(re.findall(r"\bbenchmarks[./](\w+)", text))
    assert [name for name in named if not (PROJECT / "benchmarks" / f"{name}.py").is_file()] == []


def test_what_the_documentation_has_benchmarks_run_with_is_understood() -> None:
    lines = list(documented("python -m benchmarks."))
    assert len(lines) > len(COMMANDS)
    assert [(where, words) for where, words in lines if not understood(parser_of(words[0]), words[1:])] == []


def test_a_parser_that_lacks_an_option_is_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    assert not understood(parser_of("verification"), ["--round-trips", "3"])
    assert "--round-trips" in capsys.readouterr().err


def _leaves(command: Any) -> Iterator[Any]:
    """The commands of a tree of Typer's."""
    groups = getattr(command, "commands", None)
    if groups is None:
        yield command
    else:
        for each in groups.values():
            yield from _leaves(each)


def test_what_the_documentation_has_greenroom_do_is_understood(capsys: pytest.CaptureFixture[str]) -> None:
    root: Any = typer.main.get_command(app)
    begun: list[str] = []
    leaves = list(_leaves(root))
    assert len(leaves) > 20, "each of them, or one would be carried out"
    for leaf in leaves:
        leaf.callback = lambda **_: begun.append("one")
    refused = []
    lines = list(documented("greenroom "))
    for where, words in lines:
        with pytest.raises(SystemExit) as end:
            root.main(words, prog_name="greenroom")
        if end.value.code:
            refused.append((where, words, capsys.readouterr().err))
    assert refused == []
    assert len(begun) == len(lines) > 50
