"""All that a trainer goes on from in another process: masters, moments, steps, and the reference model if there is one.

Invariants:
- a trainer that is restored makes the very same next step, bit for bit, as the one whose state was kept;
- tensors are whole and go by the names of the model's parameters, so that another number of workers or of learners can
  read them;
- nothing is unpickled.

Nothing random is computed (dropout is off), so there are no random states.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from actors.learning.sharding import whole
from actors.learning.trainer import Trainer

FILE = "learner.safetensors"
_MASTER, _OPTIMISER, _REFERENCE = "master/", "optimiser/", "reference/"


def write_trainer(trainer: Trainer, folder: Path) -> None:
    """Write the state to `folder`; of a sharded model, while all other ranks `take_part_in_writing`."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in _whole_state(trainer)}
    save_file(plain, folder / FILE, metadata={"trainer": json.dumps({"steps": trainer.steps})})


def take_part_in_writing(trainer: Trainer) -> None:
    """Send this rank's shards to the one that writes."""
    for _ in _whole_state(trainer):
        pass


def _whole_state(trainer: Trainer) -> Iterator[tuple[str, Tensor]]:
    """All tensors by name, put together from their shards one by one, in the same order on each rank."""
    masters = trainer.masters
    tensors = {_MASTER + masters.names[id(master)]: master for master in masters.parameters}
    if trainer.optimiser is not None:
        tensors |= {_OPTIMISER + place: value for place, value in trainer.optimiser.state().items()}
    if trainer.reference is not None:
        tensors |= {_REFERENCE + name: value for name, value in trainer.reference.named_parameters()}
    for name, tensor in tensors.items():
        yield name, whole(tensor)


def restore_weights(trainer: Trainer, folder: Path) -> None:
    """Set masters and weights to those of `folder`. Raises `ValueError` if they are another model's."""
    kept = _part(folder, _MASTER)
    shapes = {trainer.masters.names[id(each)]: each.shape for each in trainer.masters.parameters}
    if {name: tensor.shape for name, tensor in kept.items()} != shapes:
        raise ValueError(f"{folder} holds the state of another model: its parameters have other names or shapes")
    trainer.masters.restore(kept)


def restore_stage(trainer: Trainer, folder: Path) -> None:
    """Go on with the stage that was at work: to be called after `begin_stage` with the same options."""
    restore_moments(trainer, folder)
    with safe_open(folder / FILE, framework="pt") as file:
        trainer.steps = json.loads(file.metadata()["trainer"])["steps"]
    restore_reference(trainer, folder)


def restore_moments(trainer: Trainer, folder: Path) -> None:
    """Go on with the optimiser that was at work; its parts must be the same."""
    assert trainer.optimiser is not None, "begin the stage first"
    trainer.optimiser.restore(_part(folder, _OPTIMISER))


def restore_reference(trainer: Trainer, folder: Path) -> None:
    """Hold on to the reference that was at work, if the stage has one and there was one."""
    kept = _part(folder, _REFERENCE)
    if trainer.reference is not None and kept:
        with torch.no_grad():
            for name, parameter in trainer.reference.named_parameters():
                parameter.copy_(kept[name])


def _part(folder: Path, prefix: str) -> dict[str, Tensor]:
    with safe_open(folder / FILE, framework="pt") as file:
        names = [name for name in file.keys() if name.startswith(prefix)]
        return {name.removeprefix(prefix): file.get_tensor(name) for name in names}
