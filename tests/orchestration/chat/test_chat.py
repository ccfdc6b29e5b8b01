"""A chat with a real sandbox, and the whole command in a real terminal with a real (untrained) model."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from actors.engines.engine import SampleRequest, SampleResult
from actors.engines.vllm_options import VllmOptions
from actors.storage.reader import Archive
from actors.tokenizer import load_chat_format
from env.interpreters import Interpreters
from env.tool_call import JUPYTER_TOOL, Limits, ToolCall, ToolResult
from orchestration.archive.source import load_decode
from orchestration.chat.figures import Figures
from orchestration.chat.loop import ChatLoop
from orchestration.chat.play import ChatPlayer
from orchestration.chat.saving import FIGURES, save
from orchestration.chat.settings import PROMPT, Asked, ChatSettings, settle
from orchestration.chat.turn_view import TurnView
from orchestration.preflight import untold_of_tools
from orchestration.recipe import ModelSettings, RecipeError, ScratchModel
from orchestration.tiny_model import CHAT_TEMPLATE, write_scratch_model, write_tokenizer
from policies import tokens
from policies.dialogue import DialogueLimits
from policies.trajectory import UNTRAINED
from tests.support.waiting import until


def call(code: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': JUPYTER_TOOL, 'arguments': {'code': code}})}\n</tool_call>"


class ScriptedEngine:
    """Says these texts one after the other, token by token."""

    kind = "scripted"

    def __init__(self, settings: ChatSettings, texts: Sequence[str]) -> None:
        self._turns = [settings.chat.model_turn(text) for text in texts]

    async def sample(self, request: SampleRequest) -> SampleResult:
        ids = self._turns.pop(0)
        assert request.on_tokens is not None
        for token in ids:
            request.on_tokens([token], [-0.5])
            await asyncio.sleep(0)
        return SampleResult(ids=ids, logprobs=[-0.5] * len(ids), finish="stop", version=UNTRAINED)


class WatchedInterpreters(Interpreters):
    """Notes the code of cells that are to run."""

    def __init__(self, limits: Limits, run_id: str) -> None:
        super().__init__(limits, 1, run_id=run_id)
        self.begun: list[str] = []

    async def run(self, call: ToolCall) -> ToolResult:
        self.begun.append(call.code)
        return await super().run(call)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> ChatSettings:
    model = tmp_path_factory.mktemp("model")
    write_tokenizer(model, 4096)
    call_limits = Limits(wall_seconds=60.0)
    limits = DialogueLimits(max_tokens=4096, max_turns=4, tools=(JUPYTER_TOOL,), call=call_limits)
    chat = load_chat_format(str(model), PROMPT)
    return ChatSettings(
        model=model, chat=chat, limits=limits, engine=VllmOptions(), temperature=0.5, seed=0, recipe=None
    )


def player_of(
    settings: ChatSettings, texts: Sequence[str], interpreters: Interpreters | None, figures: Figures | None = None
) -> tuple[ChatPlayer, Console]:
    console = Console(record=True, width=100, file=open(os.devnull, "w"))
    view = TurnView(console, settings.chat.decode, settings.chat.stop_ids)
    engine = ScriptedEngine(settings, texts)
    return ChatPlayer(settings, engine, interpreters, view, figures), console  # type: ignore[arg-type]


@pytest.mark.slow
def loop_through(settings: ChatSettings, saves: Path, lines: Sequence[str], texts: Sequence[str]) -> tuple[str, str]:
    """What a chat shows whose user types these lines, and the first message as it was taken in."""
    left = list(lines)

    def ask(_: str) -> str:
        if not left:
            raise EOFError
        return left.pop(0)

    with asyncio.Runner() as runner:
        player, console = player_of(settings, texts, None)
        ChatLoop(player, runner, console, ask, model=settings.model, saves=saves).run()
    return console.export_text(), player.conversation.question


def test_a_folder_that_can_not_be_is_told_and_the_chat_goes_on(settings: ChatSettings, tmp_path: Path) -> None:
    lines = ["Hello.", "/save ~nobody-has-this-name/chats", "/save a\0b", f"/save {tmp_path / 'my chats'}"]
    shown, _ = loop_through(settings, tmp_path, lines, ["Hi."])
    assert shown.count("not saved: ") == 2 and "saved as chat/0/0/0" in shown
    assert f"greenroom show '{tmp_path / 'my chats'}'" in shown


def test_a_template_that_lists_no_tools_is_known_for_it(settings: ChatSettings, tmp_path: Path) -> None:
    assert "does not list tools" in untold_of_tools(tmp_path, settings.chat, (JUPYTER_TOOL,))
    assert not untold_of_tools(tmp_path, settings.chat, ())
    write_tokenizer(tmp_path, 4096)
    listing = "{% if tools %}{{ tools | tojson }}{% endif %}"
    (tmp_path / "chat_template.jinja").write_text(listing + CHAT_TEMPLATE)
    assert not untold_of_tools(tmp_path, load_chat_format(str(tmp_path), PROMPT), (JUPYTER_TOOL,))


def test_a_message_with_bytes_that_are_no_text_is_said_all_the_same(settings: ChatSettings, tmp_path: Path) -> None:
    shown, question = loop_through(settings, tmp_path, ["caf\udce9"], ["Yes."])
    assert question == "caf?" and "Yes." in shown


async def test_a_session_outlives_a_cell_that_was_stopped_and_the_chat_is_saved_whole(
    settings: ChatSettings, tmp_path: Path
) -> None:
    interpreters = WatchedInterpreters(settings.limits.call, run_id="test-chat")
    sleeps = "import time\ntime.sleep(50)"
    texts = ["I begin. " + call("x = 6"), "done", call(sleeps), call("print(x * 7)"), "It is 42"]
    player, console = player_of(settings, texts, interpreters)
    try:
        assert await player.answer("Set x.") == "answered"
        stopped = asyncio.ensure_future(player.answer("Sleep."))
        await until(lambda: sleeps in interpreters.begun)
        assert "time.sleep(50)" in console.export_text(clear=False)
        await asyncio.sleep(0.1)  # it is in the middle of it, on most machines
        stopped.cancel()
        assert isinstance((await asyncio.gather(stopped, return_exceptions=True))[0], asyncio.CancelledError)
        player.stop()
        assert await player.answer("And x times 7?") == "answered"
        assert [record.result.stdout for record in player.conversation.calls] == ["", "", "42\n"]
        assert [record.result.status for record in player.conversation.calls] == ["success", "killed", "success"]
        name = save(player.conversation, tmp_path / "chats", settings.model)
        await player.reset()
        assert interpreters.open_sessions() == ()
    finally:
        await interpreters.close()
    shown = console.export_text()
    assert "I begin. " in shown and "x = 6" in shown and "42" in shown
    assert "tool_call" not in shown and "<|im_end|>" not in shown
    archive = Archive(tmp_path / "chats" / "archive")
    (row,) = archive.rows
    stored, decode = archive.read(row), load_decode(archive.folder, None)
    assert (row.id, row.statuses, stored.finish) == (name, ("success", "killed", "success"), "answered")
    assert decode is not None and "And x times 7?" in decode(tokens.unpack_ids(stored.spans[-4].ids))


@pytest.mark.slow
async def test_figures_of_a_chat_are_saved_and_named_beside_its_archive(settings: ChatSettings, tmp_path: Path) -> None:
    interpreters = Interpreters(settings.limits.call, 1, run_id="test-chat-figures")
    draw = "import matplotlib.pyplot as plt\nplt.bar([1, 2], [3, 4])\nplt.show()"
    figures = Figures(interpreters, tmp_path / "chats" / FIGURES)
    player, console = player_of(settings, ["Look. " + call(draw), "There it is."], interpreters, figures)
    try:
        assert await player.answer("Draw two bars.") == "answered"
    finally:
        await interpreters.close()
    (path,) = figures.saved
    assert path == tmp_path / "chats" / FIGURES / "chat-1" / "figure-1.png" and path.stat().st_size > 1000
    assert f"figure saved: {path}" in console.export_text().replace("\n", "")
    (record,) = player.conversation.calls
    assert record.result.stdout == "[figure-1.png]\n", "so the model reads that there is one"
    assert save(player.conversation, tmp_path / "chats", settings.model) == "chat/0/0/0"


def test_a_folder_that_holds_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="there is no folder"):
        settle(Asked(model=tmp_path / "nowhere"))
    with pytest.raises(RecipeError, match=r"that folder has no config.json, tokenizer.json, \*.safetensors"):
        settle(Asked(model=tmp_path))


class Terminal:
    """A command in a pseudo-terminal of its own."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._master, slave = pty.openpty()
        environment = os.environ | {"TERM": "dumb", "COLUMNS": "120", "PYTHONPATH": str(Path.cwd())}
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, cwd=folder, env=environment, start_new_session=True,
            preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),
        )  # fmt: skip
        os.close(slave)
        self.text = ""

    def until(self, pattern: str) -> None:
        """Read until the pattern comes, after what was read before."""
        begin = len(self.text)
        while not re.search(pattern, self.text[begin:]):
            assert select.select([self._master], [], [], 120)[0], f"waited for {pattern!r} after:\n{self.text}"
            self.text += os.read(self._master, 4096).decode(errors="replace")

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        os.close(self._master)


@pytest.mark.slow
def test_ctrl_c_stops_the_turn_and_not_the_chat(tmp_path: Path) -> None:
    scratch = ScratchModel(max_tokens=2048)
    write_scratch_model(ModelSettings(scratch=scratch, dtype="float32"), 0, tmp_path / "model")
    options = ["--model", "model", "--max-tokens", "2000", "--temperature", "0", "--save-to", "chats", "--no-tools"]
    terminal = Terminal([sys.executable, "-m", "orchestration.cli", "chat", *options], tmp_path)
    try:
        terminal.until("> $")
        terminal.type("hello\n")
        terminal.until(r"hello\s+\S")  # the line's echo, then the first of the answer
        time.sleep(0.2)
        terminal.type("\x03")
        terminal.until(r"stopped\s+> ")
        terminal.type("/save\n")
        terminal.until(r"saved as chat/0/0/0\b[\s\S]*> $")
        terminal.type("/exit\n")
        assert terminal.process.wait(30) == 0
    finally:
        terminal.close()
    archive = Archive(tmp_path / "chats" / "archive")
    (row,) = archive.rows
    assert (row.finish, row.turns) == ("interrupted", 1) and 0 < row.model_tokens < 2000
