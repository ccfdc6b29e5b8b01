"""The page is whole: it needs nothing else, shows what is stored, and says when it holds a sample."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from actors.storage.reader import Archive
from actors.storage.writer import ArchiveWriter
from orchestration.archive.page import sample_groups, write_page
from policies.trajectory import Trajectory
from tests.actors.storage.samples import random_trajectory
from tests.orchestration.archive.dialogues import decode

CHROMIUM = shutil.which("chromium")


def data_of(page: Path) -> dict:
    """What the page carries."""
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found
    return json.loads(found[1], parse_constant=pytest.fail)  # a browser takes neither NaN nor Infinity


def test_the_page_holds_every_trajectory_of_the_selection_and_their_groups(
    archive: Archive, dialogues: list[Trajectory], tmp_path: Path
) -> None:
    chosen = [row for row in archive.rows if row.tool_errors]
    told = write_page(archive, chosen, decode, tmp_path / "page.html", conditions=["errors=1.."])
    assert "All 2 trajectories where errors=1.., with 2 more of their groups, of 4 in the archive." in told
    held = data_of(tmp_path / "page.html")["trajectories"]
    assert [(each["id"], each["selected"]) for each in held] == [(each.id, each.tool_errors > 0) for each in dialogues]
    assert "".join(held[1]["steps"][3]["texts"]) == "Print it — now."
    assert held[1]["steps"][1]["logprobs"][:2] == [-2.0, -0.1]
    assert held[1]["steps"][1]["calls"][0]["status"] == "error"


def test_the_page_asks_for_nothing_and_takes_no_text_for_markup(archive: Archive, tmp_path: Path) -> None:
    write_page(archive, archive.rows, decode, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "default-src 'none'" in text
    assert not re.search(r"(?:src|href)\s*=|@import|url\(|fetch\(|XMLHttpRequest|innerHTML", text)
    assert text.count("</script>") == 2  # the data's end and the program's: none from a trajectory
    assert "".join(data_of(tmp_path / "page.html")["trajectories"][3]["steps"][1]["texts"]) == "</script><b>13</b>"


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    folder = tmp_path_factory.mktemp("large")
    writer = ArchiveWriter(folder)
    for serial in range(400):
        writer.append(random_trajectory(serial))
    writer.close()
    return Archive(folder)


@pytest.mark.parametrize("limit", [4, 50, 399, 400, 1000])
def test_a_sample_has_whole_groups_from_all_over_the_selection(large: Archive, limit: int) -> None:
    held = sample_groups(large, large.rows, limit=limit)
    assert limit // 2 < len(held) <= limit or len(held) == len(large.rows)
    for name in {row.group for row in held}:
        assert [row for row in held if row.group == name] == large.groups[name]
    if limit == 50:
        quarters = {int(row.problem.split("/")[1]) // 25 for row in held}
        assert quarters == {0, 1, 2, 3}


def test_a_page_has_few_enough_tokens_for_a_browser(large: Archive) -> None:
    held = sample_groups(large, large.rows, limit=1000, most_tokens=2000)
    assert 1000 < sum(row.prompt_tokens + row.response_tokens for row in held) <= 2000
    assert len(sample_groups(large, large.rows, limit=1, most_tokens=1)) == 4  # one group at least
    assert sample_groups(large, [], limit=10) == []


def test_a_page_that_holds_a_sample_says_so(large: Archive, tmp_path: Path) -> None:
    told = write_page(large, large.rows, decode=lambda ids: "x" * len(ids), path=tmp_path / "page.html", limit=40)
    held = len(data_of(tmp_path / "page.html")["trajectories"])
    assert 30 < held <= 40
    assert f"A sample: {held} of the 400 trajectories, as {held // 4} whole groups, evenly spaced" in told
    assert data_of(tmp_path / "page.html")["note"] in told


def in_chromium(page: Path, fragment: str = "") -> tuple[str, list[str]]:
    """The page as Chromium renders it from the file, and what it wrote to its console."""
    assert CHROMIUM is not None
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
            f"--user-data-dir={page.parent / 'profile'}",
            "--virtual-time-budget=2000",
            "--dump-dom",
            f"{page.as_uri()}{fragment}",
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
    )
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_chromium_shows_the_page_from_a_file_without_a_word_in_the_console(archive: Archive, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    write_page(archive, archive.rows, decode, page)
    dom, console = in_chromium(page, "#rl%2F0%2F0%2F1")
    assert console == []
    shown = html.unescape(re.sub(r"<[^>]*>", "", dom.partition("<article")[2].partition("</article>")[0]))
    assert "rl/0/0/1" in shown and "What is 6 times 7?" in shown
    assert "Show it." in shown and "NameError: name 'show' is not defined" in shown
    assert dom.count('class="sibling"') == 4
    assert dom.count("rgba(213, 94, 0") > 20  # coloured tokens

    broken = tmp_path / "broken.html"
    broken.write_text(page.read_text().replace('"use strict";', '"use strict"; noSuchFunction();'))
    assert any("noSuchFunction" in line for line in in_chromium(broken)[1])  # an error would have been seen
