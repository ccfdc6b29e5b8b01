import pytest

from actors.tokenizer import PromptOptions, load_chat_format
from orchestration.tiny_model import write_tokenizer
from policies.chat_format import ChatFormat


@pytest.fixture(scope="session")
def chat(tmp_path_factory: pytest.TempPathFactory) -> ChatFormat:
    """The quickstart's real tokenizer and chat template."""
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder, 512)
    return load_chat_format(str(folder), PromptOptions(instructions=False))
