"""A turn's parts are the same however its text is cut on its way."""

import json

from hypothesis import given
from hypothesis import strategies as st

from orchestration.chat.turn_parts import Called, Said, TurnParts, Writing, code_so_far

PIECES = st.lists(st.sampled_from(["<", "<tool", "<tool_call>", "</tool_call>", "a", "\n", ">", "{}"]), max_size=12)


def parts_of(texts: list[str]) -> list[Said | Called]:
    """Whole parts, with words that follow each other joined."""
    cut, found = TurnParts(), list[Said | Called]()
    for part in [*(part for text in texts for part in cut.feed(text)), *cut.end()]:
        if isinstance(part, Writing):
            continue
        if isinstance(part, Said) and found and isinstance(found[-1], Said):
            found[-1] = Said(found[-1].text + part.text)
        else:
            found.append(part)
    return found


@given(PIECES)
def test_parts_do_not_depend_on_where_the_text_was_cut(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert parts_of(pieces) == parts_of(list(text)) == parts_of([text])


@given(PIECES)
def test_nothing_is_lost(pieces: list[str]) -> None:
    again = [f"<tool_call>{p.raw}</tool_call>" if isinstance(p, Called) else p.text for p in parts_of(pieces)]
    assert "".join(again) == "".join(pieces)


def test_words_are_passed_on_before_the_tag_that_may_follow() -> None:
    cut = TurnParts()
    assert cut.feed("Let me see <tool") == [Said("Let me see ")]
    assert cut.feed("s>") == [Said("<tools>")]


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30))
def test_code_grows_while_its_call_is_written(code: str) -> None:
    raw = json.dumps({"name": "jupyter_code", "arguments": {"code": code}})
    grown = [code_so_far(raw[:end]) for end in range(len(raw) + 1)]
    assert grown[-1] == code
    assert all(code.startswith(text) for text in grown)
