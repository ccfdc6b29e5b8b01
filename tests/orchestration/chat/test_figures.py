"""Figures that cells draw in a real session: saved once each, under plain names, and nothing else is written."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from env.interpreters import Interpreters
from env.tool_call import JUPYTER_TOOL, Limits, ToolCall, ToolResult
from orchestration.chat.figures import Figures, _read

PNG = b"\x89PNG\r\n\x1a\n"
LIMITS = Limits(wall_seconds=60.0)


@pytest.fixture
async def interpreters() -> AsyncIterator[Interpreters]:
    made = Interpreters(LIMITS, 1, run_id="test-figures")
    yield made
    await made.close()


async def cell(interpreters: Interpreters, code: str) -> ToolResult:
    call = ToolCall(id=code, tool=JUPYTER_TOOL, session="drawing", code=code, limits=LIMITS)
    return await interpreters.run(call)


@pytest.mark.slow
async def test_each_figure_is_saved_once_and_shown_to_nobody(interpreters: Interpreters, tmp_path: Path) -> None:
    figures = Figures(interpreters, tmp_path / "figures")
    assert await figures.save_new("drawing") == [], "there is no session yet"
    drawn = await cell(interpreters, "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\nplt.plot([2, 1]);")
    assert (drawn.status, drawn.stdout, drawn.stderr) == ("success", "[figure-1.png]\n[figure-2.png]\n", "")
    saved = await figures.save_new("drawing")
    assert saved == [tmp_path / "figures" / "chat-1" / f"figure-{number}.png" for number in (1, 2)]
    assert all(path.read_bytes().startswith(PNG) for path in saved)
    assert saved[0].read_bytes() != saved[1].read_bytes(), "the second does not have the first one's line"

    assert await figures.save_new("drawing") == []
    again = await cell(
        interpreters,
        "import os, pathlib\nos.mkdir('in it'); pathlib.Path('in it/.a b.SVG').write_text('<svg/>')\n"
        "os.symlink('/opt/python', 'link.png'); pathlib.Path('figure-1.png').write_text('x'); len(plt.get_fignums())",
    )
    assert again.stdout == "0\n", "what was shown is closed"
    assert [path.name for path in await figures.save_new("drawing")] == ["a_b.SVG", "figure-1-2.png"]
    assert (saved[0].parent / "figure-1-2.png").read_text() == "x" and saved[0].read_bytes().startswith(PNG)
    assert (await cell(interpreters, "1 / 0")).stderr.startswith('Traceback (most recent call last):\n  File "cell 3"')

    bad = await cell(interpreters, "plt.plot([1]); plt.title('$\\\\frac$');")
    assert (bad.status, "Expected \\frac" in bad.stderr) == ("error", True)
    assert (await cell(interpreters, "'goes on'")).stdout == "'goes on'\n"
    figures.begin_anew()
    await (await interpreters.sessions()).end("drawing")
    assert await figures.save_new("drawing") == []


def test_what_is_no_file_of_the_session_is_left_out() -> None:
    def line(**fields: object) -> str:
        return json.dumps({"path": "a.png", "stamp": "1 1", "content": base64.b64encode(b"x").decode()} | fields)

    fetched = _read(line())
    assert fetched is not None and fetched[1] == b"x"
    deep = "[" * 100_000
    for wrong in ("[1]", "no JSON", deep, line(path="a.sh"), line(content="%"), line(stamp=3), line(path=None)):
        assert _read(wrong) is None


async def test_no_name_leaves_the_folder(interpreters: Interpreters, tmp_path: Path) -> None:
    figures = Figures(interpreters, tmp_path)
    for path in ("../../a.png", "/etc/..png", "a/..\\b.png", "\n.png", "..png"):
        fetched = _read(json.dumps({"path": path, "stamp": "", "content": ""}))
        assert fetched is not None
        assert figures._save(*fetched).resolve().parent == tmp_path / "chat-1"
