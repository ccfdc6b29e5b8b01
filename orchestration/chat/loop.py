"""The loop of a chat on a terminal: a line from the user, then the model's answer.

Invariants:
- Ctrl-C ends what is under way, be it a turn or a cell, and never the chat;
- the chat's event loop runs only while there is something to do, so that reading a line is a plain `input`, with the
  terminal's own editing.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from actors.storage.frames import ArchiveError
from orchestration.archive.terminal import plain
from orchestration.chat.lines import COMMANDS, Command, Message, NoCommand, read_line
from orchestration.chat.play import ChatPlayer
from orchestration.chat.saving import save
from policies.conversation import MessageTooLong

PROMPT = "> "


class ChatLoop:
    """See the module's docstring.

    Args:
        runner: the event loop of engine and sandbox; it makes Ctrl-C a cancellation, then a `KeyboardInterrupt`.
        ask: shows a prompt and returns what the user typed; raises `EOFError` at the end of input.
        saves: where `/save` puts conversations by default.
    """

    def __init__(
        self,
        player: ChatPlayer,
        runner: asyncio.Runner,
        console: Console,
        ask: Callable[[str], str],
        *,
        model: Path,
        saves: Path,
    ) -> None:
        self._player, self._runner, self._console, self._ask = player, runner, console, ask
        self._model, self._saves = model, saves

    def run(self) -> None:
        """Until the user leaves. Raises `EngineFailed`."""
        while True:
            try:
                if not self._next():
                    return
            except EOFError:
                self._console.print()
                return
            except KeyboardInterrupt:
                if self._player.conversation.waiting:
                    self._console.print("\n/exit or Ctrl-D leaves", style="dim", highlight=False)
                self._player.stop()

    def _next(self) -> bool:
        """Take in a line; False if it is the wish to leave."""
        match read_line(self._ask(PROMPT)):
            case Message(text):
                try:
                    self._runner.run(self._player.answer(text))
                except MessageTooLong as error:
                    self._tell(str(error))
            case Command(name, argument):
                return self._obey(name, argument)
            case NoCommand(reason):
                self._tell(reason)
        return True

    def _obey(self, name: str, argument: str) -> bool:
        match name:
            case "exit":
                return False
            case "help":
                for command, told in COMMANDS.items():
                    self._console.print(plain(f"/{command:6} {told}"))
                self._console.print(plain("Ctrl-C  stop the model or its code"))
            case "reset":
                self._runner.run(self._player.reset())
                self._tell("a new conversation")
            case "save":
                self._save(Path(argument).expanduser() if argument else self._saves)
        return True

    def _save(self, folder: Path) -> None:
        conversation = self._player.conversation
        if not conversation.spans:
            self._tell("nothing has been said yet")
            return
        try:
            name = save(conversation, folder, self._model)
        except (ArchiveError, OSError) as error:
            self._tell(f"not saved: {error}")
            return
        self._tell(f"saved as {name}; read it with: greenroom show {shlex.quote(str(folder))} -w id={name}")

    def _tell(self, text: str) -> None:
        self._console.print(plain(text, "dim"), soft_wrap=True)
