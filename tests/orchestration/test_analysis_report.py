"""The report tells what the archive holds, and stands without it."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from actors.storage.writer import ArchiveWriter
from orchestration.analysis_report import ANALYSIS_FILE, analysis_section, read_analysis, write_analysis
from orchestration.report import write_report
from policies import tokens
from policies.trajectory import Span, WeightsVersion
from tests.actors.storage.samples import random_trajectory
from tests.policies.test_trajectory import trajectory


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder with an archive, and a model whose token 65 is the letter A and so on."""
    writer = ArchiveWriter(tmp_path / "archive")
    for serial in range(60):
        writer.append(random_trajectory(serial))
    hostile = [*b"<b>bold</b>"]
    sampled = Span(
        kind="model",
        ids=tokens.pack_ids(hostile),
        logprobs=tokens.pack_floats([-5.0] * len(hostile)),
        version=WeightsVersion(0, 0),
    )
    writer.append(trajectory(Span(kind="prompt", ids=tokens.pack_ids([65])), sampled, id="hostile"))
    writer.close()
    vocabulary = {chr(code) if code < 128 else f"<{code}>": code for code in range(300)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<299>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")  # type: ignore[assignment]
    tokenizer.decoder = decoders.Fuse()  # type: ignore[assignment]
    (tmp_path / "model").mkdir()
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    return tmp_path


def test_what_the_archive_tells_is_in_the_report_and_escaped(run: Path) -> None:
    write_analysis(run, run / "model")
    found = read_analysis(run)
    assert found is not None and found.trajectories == 61
    page = write_report(run).read_text()
    section = page.partition("What the trajectories tell")[2].partition("</section>")[0]
    assert "<b>" not in section and "&lt;" in section
    plain = unescape(re.sub(r"<[^>]*>", " ", section))
    for kind in found.errors:
        assert re.search(rf"{kind.status}\s+{kind.kind}\s+{kind.in_correct}\s+{kind.in_wrong}\s", plain)
    assert {kind.kind for kind in found.errors} >= {"NameError", "ZeroDivisionError"}
    assert "hostile" in {token.example for token in found.forking_tokens}


def test_a_run_without_an_analysis_has_a_report_without_that_section(run: Path) -> None:
    assert "What the trajectories tell" not in write_report(run).read_text()


@pytest.mark.parametrize("content", ["", "[]", json.dumps({"trajectories": "many"})])
def test_a_broken_analysis_is_named_in_the_report(run: Path, content: str) -> None:
    (run / ANALYSIS_FILE).write_text(content)
    page = write_report(run).read_text()
    assert "analysis.json holds no analysis: what the trajectories tell is not shown" in page
    assert "What the trajectories tell" not in page


def test_an_archive_without_trajectories_has_nothing_to_tell(tmp_path: Path) -> None:
    ArchiveWriter(tmp_path / "archive").close()
    (tmp_path / "model").mkdir()
    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "model" / "tokenizer.json"))
    write_analysis(tmp_path, tmp_path / "model")
    assert analysis_section(read_analysis(tmp_path)) == ""
