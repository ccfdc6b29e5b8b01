"""A line is a message, a command, or something that looks like a command and is told so."""

import pytest

from orchestration.chat.lines import Command, Message, NoCommand, read_line


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("", None),
        ("  \n", None),
        (" hello ", Message("hello")),
        ("/reset", Command("reset")),
        ("/RESET ", Command("reset")),
        ("/save my chats/one", Command("save", "my chats/one")),
        ("/usr/bin/python is what?", Message("/usr/bin/python is what?")),
        (" /reset", Message("/reset")),
    ],
)
def test_lines_are_read(line: str, read: object) -> None:
    assert read_line(line) == read


@pytest.mark.parametrize(("line", "reason"), [("/rest", "no command /rest"), ("/exit now", "/exit takes nothing")])
def test_what_only_looks_like_a_command_is_not_sent_to_the_model(line: str, reason: str) -> None:
    read = read_line(line)
    assert isinstance(read, NoCommand) and reason in read.reason
