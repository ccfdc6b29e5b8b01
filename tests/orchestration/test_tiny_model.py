"""The quickstart's tokenizer loses no text and keeps dialogues short."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.tokenizer import PromptOptions, load_chat_format
from orchestration.tiny_model import write_tokenizer
from policies.arithmetic import make_problem
from policies.chat_format import ChatFormat
from policies.demonstrations import call_text


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> ChatFormat:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder, 512)
    return load_chat_format(str(folder), PromptOptions(instructions=False))


@given(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126)))
def test_any_ascii_text_decodes_to_itself(chat: ChatFormat, text: str) -> None:
    assert chat.decode(chat.model_turn(text)) == text + "<|im_end|>"


def test_numbers_are_cut_into_pairs_from_the_left(chat: ChatFormat) -> None:
    assert [chat.decode([token]) for token in chat.model_turn("90210")[:-1]] == ["90", "21", "0"]


def test_a_dialogue_takes_few_tokens(chat: ChatFormat) -> None:
    for index in range(100):
        assert len(chat.prompt(make_problem(0, index, levels=(1, 2), held_out=False).problem.question)) < 48
    assert len(chat.model_turn(call_text("print(12345 * 6789)"))) == 11
