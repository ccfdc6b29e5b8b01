"""A trainer whose state is restored goes on bit for bit as the one that it was taken from."""

from pathlib import Path

import pytest
import torch

from actors.learning.model import Dtype, load_model
from actors.learning.trainer import Trainer
from actors.learning.trainer_state import (
    restore_moments,
    restore_reference,
    restore_stage,
    restore_weights,
    write_trainer,
)
from policies.options import MuonOptions, ObjectiveOptions, OptimiserOptions
from tests.actors.learning.conftest import one_thread  # noqa: F401
from tests.actors.learning.samples import batch, model_folder

OPTIMISERS = {
    "adamw": OptimiserOptions(learning_rate=1e-2, warmup_steps=3, schedule="cosine", micro_batch_tokens=64),
    "muon": OptimiserOptions(learning_rate=1e-2, warmup_steps=0, micro_batch_tokens=64, muon=MuonOptions()),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("models") / "small")


def begin(trainer: Trainer, optimiser: str, kl_weight: float) -> None:
    trainer.begin_stage(OPTIMISERS[optimiser], ObjectiveOptions(kl_weight=kl_weight), total_steps=6, temperature=1.0)


def trained_and_written(
    folder: Path, to: Path, optimiser: str = "adamw", kl_weight: float = 0.0, dtype: Dtype = "float32"
) -> tuple[Trainer, Trainer]:
    """A trainer after three steps, and another one with the weights that it has written."""
    whole = Trainer(load_model(folder, dtype))
    begin(whole, optimiser, kl_weight)
    for seed in range(3):
        whole.step("reinforce", batch(seed))
    write_trainer(whole, to)
    other = Trainer(load_model(folder, dtype))
    restore_weights(other, to)
    return whole, other


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("optimiser", "kl_weight"), [("adamw", 0.0), ("muon", 0.0), ("adamw", 0.1)])
def test_the_next_steps_are_the_same_bit_for_bit(
    folder: Path, tmp_path: Path, dtype, optimiser: str, kl_weight: float
) -> None:
    whole, resumed = trained_and_written(folder, tmp_path, optimiser, kl_weight, dtype)
    begin(resumed, optimiser, kl_weight)
    restore_stage(resumed, tmp_path)
    for seed in range(3, 6):
        assert resumed.step("reinforce", batch(seed)) == whole.step("reinforce", batch(seed))
    for trainer in (whole, resumed):
        assert trainer.steps == 6
    mine, theirs = (dict(trainer.model.named_parameters()) for trainer in (resumed, whole))
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    assert all(torch.equal(a, b) for a, b in zip(resumed.masters.parameters, whole.masters.parameters, strict=True))


def test_what_a_stage_keeps_of_the_one_before_is_kept_by_another_process_too(folder: Path, tmp_path: Path) -> None:
    whole, resumed = trained_and_written(folder, tmp_path, kl_weight=0.1)
    for trainer in (whole, resumed):
        objective = ObjectiveOptions(kl_weight=0.1)
        trainer.begin_stage(OPTIMISERS["adamw"], objective, 6, 1.0, reset_optimiser=False, refresh_reference=False)
    restore_moments(resumed, tmp_path)
    restore_reference(resumed, tmp_path)
    for seed in range(3, 5):
        assert resumed.step("reinforce", batch(seed)) == whole.step("reinforce", batch(seed))
    mine, theirs = (dict(trainer.model.named_parameters()) for trainer in (resumed, whole))
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_without_its_optimisers_state_it_would_go_on_differently(folder: Path, tmp_path: Path) -> None:
    """The comparison above can fail."""
    whole, forgetful = trained_and_written(folder, tmp_path)
    begin(forgetful, "adamw", 0.0)
    for trainer in (whole, forgetful):
        trainer.step("reinforce", batch(3))
    mine, theirs = (dict(trainer.model.named_parameters()) for trainer in (forgetful, whole))
    assert not all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_the_state_of_another_model_is_refused(folder: Path, tmp_path: Path) -> None:
    from tests.actors.learning.samples import small_model

    write_trainer(Trainer(small_model(layers=1)), tmp_path)
    with pytest.raises(ValueError, match="another model"):
        restore_weights(Trainer(load_model(folder, "float32")), tmp_path)
