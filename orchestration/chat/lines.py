"""What a line that the user types is: a message, or a command."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

CommandName = Literal["reset", "save", "help", "exit"]
COMMANDS: dict[CommandName, str] = {
    "reset": "begin a new conversation, with an empty session",
    "save": "[FOLDER]: add this conversation to an archive, for `greenroom show`",
    "help": "this list",
    "exit": "leave (so does Ctrl-D)",
}
_COMMAND = re.compile(r"/([A-Za-z]+)(?:\s+(.*))?")


class Message(NamedTuple):
    """Something to say to the model."""

    text: str


class Command(NamedTuple):
    """Something to do."""

    name: CommandName
    argument: str = ""


class NoCommand(NamedTuple):
    """What looks like a command and is none."""

    reason: str


def read_line(line: str) -> Message | Command | NoCommand | None:
    """What a line is; None if it is empty. A message that begins like a command can begin with a space."""
    match = _COMMAND.fullmatch(line.rstrip())
    if match is None:
        return Message(line.strip()) if line.strip() else None
    given, argument = match.group(1), (match.group(2) or "").strip()
    name: CommandName | None = next((name for name in COMMANDS if name == given.lower()), None)
    if name is None:
        return NoCommand(f"there is no command /{given}; /help lists them (a message may begin with a space)")
    if argument and name != "save":
        return NoCommand(f"/{name} takes nothing after it")
    return Command(name, argument)
