"""The two sides of the learner benchmark: our step, and a plain step with transformers, at equal work.

Invariants:
- both take the same sequences, start from the same weights, minimise the same loss (GRPO-RoC's, over all learned tokens
  of the step) and end with a clipped AdamW update: their losses agree, and the benchmark checks it;
- memory is that of this process alone, and counts from where it rests between steps (weights and moments).
"""

from __future__ import annotations

import ctypes
import gc
import json
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from actors.learning.model import ModelSpec, build_model
from actors.learning.trainer import trainer_on_threads
from actors.system.orphans import die_with
from policies import tokens
from policies.batch import TrainingSequence
from policies.options import ObjectiveOptions, OptimiserOptions

SideName = Literal["packed", "plain"]
LENGTHS = Path(__file__).with_name("learner_lengths.json")
ROLLOUTS_PER_PASS = 8
"""Of the plain step, padded to the longest of them. Ours makes as many passes, of as many real tokens each."""
SILENT_SHARE = 10
"""One token in so many, at the beginning of each sequence, is prompt: nothing is learned of it."""
SHORTEST = 4
OPTIMISER = OptimiserOptions(learning_rate=1e-6, warmup_steps=0)


class Shape(NamedTuple):
    """A model to measure."""

    spec: ModelSpec
    vocabulary: int


class StepTime(NamedTuple):
    """One step, as it was."""

    seconds: float
    loss: float


class StepMemory(NamedTuple):
    """One step's memory."""

    resting_bytes: int
    """Resident memory before the step."""
    peak_bytes: int
    """The most resident memory during the step, above `resting_bytes`."""


def sequences_for(vocabulary: int, longest: int) -> list[TrainingSequence]:
    """The rollouts of the file, scaled to at most `longest` tokens; ids and advantages are seeded noise."""
    stored = json.loads(LENGTHS.read_text())
    rng = np.random.default_rng(0)
    made = []
    for length in (length for row in stored["rows"] for length in row):
        scaled = max(SHORTEST, round(length * longest / stored["longest"]))
        silent = max(1, scaled // SILENT_SHARE)
        learned = np.repeat(np.array([0, 1], np.uint8), [silent, scaled - silent])
        made.append(
            TrainingSequence(
                ids=tokens.pack_ids(rng.integers(0, vocabulary, scaled)),
                learned=learned.tobytes(),
                # Weights are random: each token is about as likely as any other.
                logprobs=tokens.pack_floats(-np.log(vocabulary) * learned),
                advantage=float(rng.choice([-1.0, 1.0])),
            )
        )
    return made


def steps_of(sequences: Sequence[TrainingSequence], parts: int) -> list[list[TrainingSequence]]:
    """The file cut into `parts` steps, each with passes from all along it."""
    batches = passes(sequences)
    return [[sequence for batch in batches[part::parts] for sequence in batch] for part in range(parts)]


def passes(sequences: Sequence[TrainingSequence]) -> list[Sequence[TrainingSequence]]:
    """The plain step's passes, in the order in which rollouts came."""
    return [sequences[at : at + ROLLOUTS_PER_PASS] for at in range(0, len(sequences), ROLLOUTS_PER_PASS)]


def padded_tokens(batch: Sequence[TrainingSequence]) -> int:
    """What a pass of the plain step computes."""
    return len(batch) * max(sequence.length for sequence in batch)


def packed_step(model: PreTrainedModel, sequences: Sequence[TrainingSequence], threads: int) -> Callable[..., float]:
    """Our step as the learner actor sets it up; `sequences` say how many tokens a pass has."""
    lengths = [sequence.length for sequence in sequences]
    row_tokens = max(*lengths, -(-sum(lengths) // len(passes(sequences))))
    trainer = trainer_on_threads(model, threads)
    trainer.begin_stage(
        OPTIMISER.model_copy(update={"micro_batch_tokens": row_tokens}), ObjectiveOptions(), 1, temperature=1.0
    )
    return lambda batch: trainer.step("reinforce", batch)["loss"]


def plain_step(model: PreTrainedModel, threads: int) -> Callable[..., float]:
    """What one writes with transformers and torch alone: padded rollouts, full logits."""
    torch.set_num_threads(threads)
    model.set_attn_implementation("sdpa")
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=OPTIMISER.learning_rate, betas=OPTIMISER.betas, weight_decay=OPTIMISER.weight_decay
    )

    def step(sequences: Sequence[TrainingSequence]) -> float:
        learned_tokens = sum(sequence.learned_tokens for sequence in sequences)
        total = 0.0
        for batch in passes(sequences):
            loss = _plain_loss(model, batch) / learned_tokens
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIMISER.gradient_clip)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return total

    return step


def _plain_loss(model: PreTrainedModel, batch: Sequence[TrainingSequence]) -> Tensor:
    """The sum of the batch's token losses."""
    longest = max(sequence.length for sequence in batch)
    ids, real, learned = (torch.zeros(len(batch), longest, dtype=torch.long) for _ in range(3))
    engine = torch.zeros(len(batch), longest)
    for index, sequence in enumerate(batch):
        ids[index, : sequence.length] = torch.tensor(tokens.unpack_ids(sequence.ids))
        real[index, : sequence.length] = 1
        learned[index, : sequence.length] = torch.tensor(list(sequence.learned))
        engine[index, : sequence.length] = torch.tensor(tokens.unpack_floats(sequence.logprobs))
    advantages = torch.tensor([sequence.advantage for sequence in batch])[:, None]
    logits = model(input_ids=ids, attention_mask=real, use_cache=False).logits
    logprobs = logits[:, :-1].float().log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    ratio = (logprobs - engine[:, 1:]).exp()
    losses = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.28) * advantages)
    return (losses * learned[:, 1:]).sum()


def serve(
    connection: Connection, parent: int, side: SideName, shape: Shape, longest: int, parts: int, threads: int
) -> None:
    """One side's process: says that it is ready, then takes each step whose number it is told, and measures.

    It dies with its `parent` (by pid).
    """
    die_with(parent)
    sequences = sequences_for(shape.vocabulary, longest)
    model = build_model(shape.spec, vocabulary=shape.vocabulary, seed=0)
    step = packed_step(model, sequences, threads) if side == "packed" else plain_step(model, threads)
    step(sequences[:ROLLOUTS_PER_PASS])  # warm: moments exist, kernels are chosen
    connection.send("ready")
    steps = steps_of(sequences, parts)
    while True:
        number, measured = connection.recv()
        connection.send((_time if measured == "time" else _memory)(step, steps[number]))


def _time(step: Callable[..., float], sequences: Sequence[TrainingSequence]) -> StepTime:
    begun = time.perf_counter()
    loss = step(sequences)
    return StepTime(time.perf_counter() - begun, loss)


def _memory(step: Callable[..., float], sequences: Sequence[TrainingSequence]) -> StepMemory:
    """Not timed: getting back from the system what was just given back to it is work that no run of training has."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what the allocator merely keeps at hand is not in use
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far (proc(5))
    resting = _status_bytes("VmRSS")
    step(sequences)
    return StepMemory(resting, max(0, _status_bytes("VmHWM") - resting))


def _status_bytes(name: str) -> int:
    """A figure of /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return 1024 * int(line.split()[1])
    raise OSError(f"/proc/self/status has no {name}; the learner benchmark needs Linux's figures of memory")
