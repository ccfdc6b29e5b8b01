"""A transcript says what the trajectory's tokens say, each in its place."""

from __future__ import annotations

import math

from hypothesis import example, given
from hypothesis import strategies as st

from orchestration.archive.transcript import token_texts, transcript
from policies import tokens
from policies.trajectory import Trajectory
from tests.orchestration.archive.dialogues import decode


@given(st.text(max_size=30))
def test_the_texts_of_tokens_are_together_the_text_of_all(text: str) -> None:
    ids = list(text.encode())
    texts = token_texts(ids, decode)
    assert len(texts) == len(ids)
    assert "".join(texts) == text


@given(st.binary(max_size=60))
@example(b"\x80\x80\x80\xc2\x80\x80\x80\x80\x00")  # a byte told as a stray one begins a character after all
def test_bytes_that_are_no_text_are_shown_as_they_can_be(data: bytes) -> None:
    texts = token_texts(list(data), decode)
    assert len(texts) == len(data)
    assert all("".join(texts[end - 8 : end]) for end in range(8, len(texts) + 1))  # nothing is put off for ever


def test_a_character_of_several_tokens_belongs_to_the_last_of_them() -> None:
    assert token_texts(list("a—b".encode()), decode) == ["a", "", "", "—", "b"]


def test_a_space_that_depends_on_what_is_before_is_kept() -> None:
    def strips(ids: list[int]) -> str:  # as sentencepiece does at the beginning of what it decodes
        return "".join(f" w{each}" for each in ids).removeprefix(" ")

    assert token_texts(list(range(30)), strips) == ["w0", *(f" w{each}" for each in range(1, 30))]  # type: ignore[arg-type]


def test_steps_hold_their_spans_and_each_turn_its_calls(dialogues: list[Trajectory]) -> None:
    steps = transcript(dialogues[1], decode)
    assert [(step.kind, step.turn) for step in steps] == [
        ("prompt", None),
        ("model", 0),
        ("tool", None),
        ("model", 1),
        ("tool", None),
        ("model", 2),
    ]
    assert [step.text for step in steps[1:4]] == ["Show it.", "NameError", "Print it — now."]
    statuses = [[record.result.status for record in step.calls] for step in steps]
    assert statuses == [[], ["error"], [], ["success"], [], []]
    for step, span in zip(steps, dialogues[1].spans, strict=True):
        assert [token.id for token in step.tokens] == tokens.unpack_ids(span.ids)
        assert [version for version, _ in step.versions] == ([] if span.version is None else [span.version])
    mean = steps[1].logprob_mean
    assert mean is not None and math.isclose(mean, (-2.0 - 7 * 0.1) / 8, rel_tol=1e-6)
    assert steps[0].logprob_mean is None
