"""Checkpoints: whole or absent, and loadable by anyone."""

import os
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from actors.learning.checkpoint import write_checkpoint
from tests.actors.learning.samples import model_folder, small_model, weights_of


def stored(path: Path) -> dict[str, torch.Tensor]:
    return weights_of(AutoModelForCausalLM.from_pretrained(path, local_files_only=True))


@pytest.mark.parametrize("tied", [True, False])
def test_what_was_written_loads_elsewhere_with_the_same_weights_and_tokenizer(tmp_path: Path, tied: bool) -> None:
    source, model = model_folder(tmp_path / "source"), small_model(seed=3, tie_embeddings=tied)
    write_checkpoint(model, tmp_path / "deep" / "step-1", tokenizer_from=source)
    torch.testing.assert_close(stored(tmp_path / "deep" / "step-1"), weights_of(model), rtol=0, atol=0)
    tokenizer, original = (AutoTokenizer.from_pretrained(folder) for folder in (tmp_path / "deep" / "step-1", source))
    text = "<|im_start|>user\nWhat is 12 + 30?<|im_end|>"
    assert tokenizer(text)["input_ids"] == original(text)["input_ids"]
    assert tokenizer.chat_template == original.chat_template
    assert sorted(p.name for p in (tmp_path / "deep").iterdir()) == ["step-1"]
    assert (tmp_path / "deep" / "step-1" / "generation_config.json").is_file()
    assert "greenroom" not in (tmp_path / "deep" / "step-1" / "config.json").read_text()


class Interrupted(Exception):
    pass


def fail_at(monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    """Have the `call`-th operation on the disk (sync or rename) raise, as a kill would stop there."""
    done = 0
    sync, rename = os.fsync, Path.rename

    def step() -> None:
        nonlocal done
        done += 1
        if done == call:
            raise Interrupted

    def guarded_sync(descriptor: int) -> None:
        step()
        sync(descriptor)

    def guarded_rename(self: Path, target: Path) -> Path:
        step()
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", guarded_sync)
    monkeypatch.setattr(Path, "rename", guarded_rename)


@pytest.mark.parametrize("old_exists", [False, True])
def test_an_interruption_anywhere_never_leaves_a_half_written_checkpoint(tmp_path: Path, old_exists: bool) -> None:
    source = model_folder(tmp_path / "source")
    old, new = small_model(seed=1), small_model(seed=2)
    outcomes = set()
    for call in range(1, 40):
        path = tmp_path / f"run-{call}" / "last"
        if old_exists:
            write_checkpoint(old, path, tokenizer_from=source)
        with pytest.MonkeyPatch.context() as patch:
            fail_at(patch, call)
            try:
                write_checkpoint(new, path, tokenizer_from=source)
                interrupted = False
            except Interrupted:
                interrupted = True
        if path.exists():
            weights = stored(path)
            is_new = torch.equal(weights["model.norm.weight"], weights_of(new)["model.norm.weight"]) and torch.equal(
                weights["model.embed_tokens.weight"], weights_of(new)["model.embed_tokens.weight"]
            )
            torch.testing.assert_close(weights, weights_of(new if is_new else old), rtol=0, atol=0)
            AutoTokenizer.from_pretrained(path)
            outcomes.add("new" if is_new else "old")
        else:
            outcomes.add("absent")
        write_checkpoint(new, path, tokenizer_from=source)  # and the next attempt succeeds and cleans up
        assert [p.name for p in path.parent.iterdir()] == ["last"]
        if not interrupted:
            break
    else:
        pytest.fail("more operations than were tried")
    # Between the two renames of a replacement the old checkpoint is whole, but under its other name.
    assert outcomes == ({"old", "absent", "new"} if old_exists else {"absent", "new"})


def test_an_old_checkpoint_that_a_kill_left_aside_is_put_back_before_the_next_attempt(tmp_path: Path) -> None:
    path, old = tmp_path / "last", small_model(seed=1)
    write_checkpoint(old, path)
    path.rename(tmp_path / "last.replaced")
    with pytest.MonkeyPatch.context() as patch:
        fail_at(patch, 2)  # the first operation puts it back
        with pytest.raises(Interrupted):
            write_checkpoint(small_model(seed=2), path)
    torch.testing.assert_close(stored(path), weights_of(old), rtol=0, atol=0)
