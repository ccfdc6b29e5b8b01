"""Text that a model, a program or a file holds goes to a terminal as text: it neither controls it nor hides in it."""

from __future__ import annotations

import io
import unicodedata

import pytest
from rich.console import Console

from orchestration.terminal import literal, visible

HOSTILE = "\x1b]52;c;QQ==\x07\x9b31m a\rb\x08\x7f \u202egnp\u2066 \u200b\ufeff\U000e0041 \u2028 \ud800"


def test_what_controls_a_terminal_or_is_not_seen_is_made_visible() -> None:
    shown = visible(HOSTILE)
    assert shown == "␛]52;c;QQ==␇\ufffd31m a␍b␈␡ \ufffdgnp\ufffd \ufffd\ufffd\ufffd \ufffd \ufffd"
    assert shown.encode()


def test_words_in_any_script_lines_and_tabs_stay_as_they_are() -> None:
    text = "a\tb\nפשר, پشیمان\u200cام, é, 𝔸, 👩\u200d💻, ∑ ≤ →"  # joiners belong to words and pictures
    assert visible(text) == text


@pytest.mark.parametrize("category", ["Cc", "Cs"])
def test_no_control_character_and_no_surrogate_is_left(category: str) -> None:
    every = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) == category]
    assert {each for each in visible("".join(every)) if unicodedata.category(each) == category} <= {"\t", "\n"}


def test_text_within_markup_is_no_markup() -> None:
    out = io.StringIO()
    Console(file=out, force_terminal=True, color_system=None).print(f"[bold]said:[/] {literal('[/x][link=http://e]')}")
    assert "[/x][link=http://e]" in out.getvalue() and "\x1b]8" not in out.getvalue()
