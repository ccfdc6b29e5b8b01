"""One optimiser step after another on packed sequences.

Invariants:
- a step's gradient does not depend on how its sequences are cut into micro batches, or dealt out to learners (but for
  rounding): token weights are those of the whole step;
- a step either updates all weights or none: a loss or gradient that is not finite raises before the optimiser moves;
- the reference that `kl_weight` holds on to is the model as it was when the stage began, or an earlier one if it is
  kept;
- same weights, options, sequences, workers, threads and learners: same result, bit for bit.

Small models on a CPU run rows side by side on worker threads with one compute thread each, rather than one row on many
threads: there are no barriers between operations, at which threads would wait for (and spin against) one another. Each
worker has a fixed share of the rows and a gradient of its own, and the shares are summed in order.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from actors.learning.master_weights import MasterWeights
from actors.learning.model import checkpoint_activations, score_row
from actors.learning.optimiser import StageOptimiser, rate_share
from actors.learning.sharding import LearnerGroup, whole
from actors.system.actor import CannotGoOn
from policies import tokens
from policies.batch import TrainingSequence
from policies.diagnostics import Diagnostics
from policies.objectives import SampledTokens, imitation_losses, policy_losses, token_weights, weighted_sum
from policies.options import ObjectiveOptions, OptimiserOptions
from policies.packing import PackedRow, pack

Kind = Literal["fine_tune", "reinforce"]


class NonFiniteStep(CannotGoOn):
    """A loss or gradient was infinite or not a number; the weights are as they were before the step."""


SMALL_PARAMETERS = 1 << 26
"""Up to this size a CPU's threads work on a row each; above, all on one row."""
ROWS_PER_WORKER = 8
"""So that workers end at about the same time, and a row's activations stay near the core that works on them."""
ROOM = 1.1
"""Of a row shared out to learners, over the even share: one row more would be a pass more for all of them."""
SMALLEST_ROW_TOKENS = 1024
"""Shorter rows would cost more in calls than they gain."""


class _Job(NamedTuple):
    """What a step's passes have in common."""

    kind: Kind
    per_sequence: np.ndarray
    """float32 `[S, 2]`: token weight and advantage."""
    objective: ObjectiveOptions
    temperature: float


@dataclass(slots=True)
class _Sums:
    """Of one or several passes."""

    loss: float = 0.0
    entropy: float = 0.0
    diagnostics: Diagnostics = field(default_factory=Diagnostics)

    def merge(self, other: _Sums) -> None:
        self.loss += other.loss
        self.entropy += other.entropy
        self.diagnostics.merge(other.diagnostics)


class Trainer:
    """A model with its optimiser, for one stage at a time.

    Args:
        workers: rows run side by side (see the module); each takes memory for a gradient and one row's activations.
        group: the learners over which `model` is sharded. All of them make each call of this class at the same time and
            with the same arguments; where one raises `ValueError` or `NonFiniteStep`, so do all. With one worker only.
    """

    def __init__(self, model: PreTrainedModel, workers: int = 1, group: LearnerGroup | None = None) -> None:
        assert group is None or workers == 1, "collectives need one order of passes"
        self.model = model
        self.masters = MasterWeights(model)
        self._workers = workers
        self._group = group
        self.steps = 0
        """Optimiser steps since the stage began."""
        self._stage: tuple[OptimiserOptions, ObjectiveOptions, int, float] | None = None
        self.optimiser: StageOptimiser | None = None
        """Of the stage at work."""
        self.reference: PreTrainedModel | None = None
        """What the stage's divergence term holds on to, if it has one."""

    def begin_stage(
        self,
        optimiser: OptimiserOptions,
        objective: ObjectiveOptions,
        total_steps: int,
        temperature: float,
        *,
        reset_optimiser: bool = True,
        refresh_reference: bool = True,
    ) -> None:
        """Set the options of what follows; the schedule starts afresh.

        Args:
            reset_optimiser: False: the moments of the stage before go on, if there was one.
            refresh_reference: False: the reference stays that of the stage before, if that had one.

        Raises `ValueError` for a temperature that nothing can be sampled at, and for options the model can't serve.
        """
        if not temperature > 0:
            raise ValueError(f"temperature is {temperature}; rollouts to learn from are sampled above 0")
        if objective.kl_weight and self._group is not None:
            raise ValueError(
                f"kl_weight is {objective.kl_weight}, but the model is sharded over {self._group.count} learners, "
                "which keep no reference; set learner.count = 1 or kl_weight = 0"
            )
        self._stage = None  # until all of this is done
        if refresh_reference or not objective.kl_weight:
            self.reference = None  # free to go before another is made
        if objective.kl_weight and self.reference is None:
            self.reference = copy.deepcopy(self.model).requires_grad_(False)
            checkpoint_activations(self.reference, False)
        checkpoint_activations(self.model, optimiser.activation_checkpointing)
        moments = {} if reset_optimiser or self.optimiser is None else self.optimiser.state()
        self.optimiser = StageOptimiser(self.masters, optimiser)
        self.optimiser.restore(moments)
        self._stage = (optimiser, objective, total_steps, temperature)
        self.steps = 0

    def step(self, kind: Kind, sequences: Sequence[TrainingSequence]) -> dict[str, float]:
        """One optimiser step; returns its metrics. `skipped` is 1 where nothing could be learned, and nothing changed.

        Sequences with an advantage of zero have no gradient (unless the objective has terms that don't depend on it):
        they count in the denominator and are not run, so figures per token are over the tokens of all others.

        Raises:
            ValueError: no stage has begun, or the sequences don't fit the model, the options or the kind.
            NonFiniteStep: see there.
        """
        if self._stage is None:
            raise ValueError("no stage has begun; send BeginStage before Learn")
        optimiser, objective, total_steps, temperature = self._stage
        self._validate(kind, sequences)
        counts = [sequence.learned_tokens for sequence in sequences]
        weights = token_weights(
            counts,
            [sequence.group for sequence in sequences],
            objective.denominator if kind == "reinforce" else "batch_tokens",
            objective.constant_tokens,
        )
        all_move = kind == "fine_tune" or objective.kl_weight > 0 or objective.entropy_weight > 0
        moving = [
            index for index, sequence in enumerate(sequences) if counts[index] and (all_move or sequence.advantage != 0)
        ]
        share = rate_share(self.steps, optimiser, total_steps)
        metrics = {
            "sequences": float(len(sequences)),
            "tokens": float(sum(sequence.length for sequence in sequences)),
            "learned_tokens": float(sum(counts)),
            "learning_rate": optimiser.learning_rate * share,
            "skipped": float(not moving),
        }
        if not moving:
            return metrics

        chosen = [sequences[index] for index in moving]
        rows = pack(chosen, self._row_tokens(chosen, optimiser.micro_batch_tokens))
        per_sequence = np.array([[weights[i], sequences[i].advantage] for i in moving], dtype=np.float32)
        sums = self._accumulate(rows, _Job(kind, per_sequence, objective, temperature if kind == "reinforce" else 1.0))
        run = sum(len(row.targets) for row in rows)
        metrics |= {"loss": sums.loss, "entropy": sums.entropy / run, "micro_batches": float(len(rows))}
        metrics |= sums.diagnostics.metrics(objective)
        metrics["gradient_norm"] = self._update(optimiser.gradient_clip, share, sums.loss)
        self.steps += 1
        return metrics

    def _row_tokens(self, sequences: Sequence[TrainingSequence], limit: int) -> int:
        """Tokens per row: `limit`, or less where that keeps all workers busy."""
        lengths = [sequence.length for sequence in sequences]
        if self._group is not None:
            # As few passes as the limit allows, and in each of them a row for each learner, with room for what does not
            # fit in evenly.
            passes = -(-sum(lengths) // (limit * self._group.count))
            return min(limit, max(int(ROOM * sum(lengths) / (passes * self._group.count)), *lengths))
        if self._workers == 1:
            return limit
        share = sum(lengths) // (self._workers * ROWS_PER_WORKER)
        return min(limit, max(share, SMALLEST_ROW_TOKENS, *lengths))

    def _accumulate(self, rows: list[PackedRow], job: _Job) -> _Sums:
        """Forward and backward over all rows; leaves the step's gradient in the masters."""
        self.masters.zero_grad()
        if self._group is not None:
            sums = _Sums()
            for of_rank in self._group.gather(self._run_all(self._group.share(rows), job)):
                sums.merge(of_rank)
            return sums
        if self._workers == 1 or len(rows) == 1:
            return self._run_all(rows, job)
        with ThreadPoolExecutor(self._workers) as pool:
            shares = [
                pool.submit(self._run_share, rows[worker :: self._workers], job)
                for worker in range(min(self._workers, len(rows)))
            ]
        gradients, sums = shares[0].result()
        for share in shares[1:]:
            more, of_share = share.result()
            _add(gradients, more)
            sums.merge(of_share)
        self.masters.set_gradients(gradients)
        return sums

    def _run_all(self, rows: list[PackedRow], job: _Job) -> _Sums:
        """One row after another; leaves their gradient in the masters."""
        sums = _Sums()
        for row in rows:
            loss, of_row = self._run(row, job)
            loss.backward()
            self.masters.collect()
            sums.merge(of_row)
        return sums

    def _run_share(self, rows: list[PackedRow], job: _Job) -> tuple[list[Tensor], _Sums]:
        """One worker's rows and the gradient of their losses; touches nothing that workers share."""
        gradients: list[Tensor] = []
        sums = _Sums()
        for row in rows:
            loss, of_row = self._run(row, job)
            more = torch.autograd.grad(loss, self.masters.weights, materialize_grads=True)
            if gradients:
                _add(gradients, more)
            else:  # copies: autograd's may share memory
                masters = self.masters.parameters
                gradients = [new.to(master.dtype, copy=True) for new, master in zip(more, masters, strict=True)]
            sums.merge(of_row)
        return gradients, sums

    def _run(self, row: PackedRow, job: _Job) -> tuple[Tensor, _Sums]:
        """The forward pass over one row."""
        device = self.model.device
        score = partial(score_row, self.model) if self._group is None else self._group.score
        scores = score(row, job.temperature)
        weights, advantages = torch.from_numpy(job.per_sequence[row.owners]).to(device).unbind(-1)
        diagnostics = Diagnostics()
        if job.kind == "reinforce":
            sampled = SampledTokens(
                engine_logprobs=torch.from_numpy(row.logprobs).to(device),
                advantages=advantages,
                owners=torch.from_numpy(row.owners).to(device),
                reference_logprobs=self._reference_logprobs(row, job.temperature),
            )
            losses, diagnostics = policy_losses(scores.logprobs, sampled, job.objective, scores.entropies)
        else:
            losses = imitation_losses(scores.logprobs)
        loss = weighted_sum(losses, weights)
        return loss, _Sums(float(loss.detach()), float(scores.entropies.detach().sum()), diagnostics)

    def _reference_logprobs(self, row: PackedRow, temperature: float) -> Tensor | None:
        if self.reference is None:
            return None
        with torch.no_grad():
            return score_row(self.reference, row, temperature).logprobs

    def _update(self, gradient_clip: float, share: float, loss: float) -> float:
        """Clip the accumulated gradient, apply it, and return its norm before the clip."""
        norm = float(whole(torch.nn.utils.clip_grad_norm_(self.masters.parameters, gradient_clip)))
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self.masters.zero_grad()
            raise NonFiniteStep(
                f"step {self.steps} of the stage has loss {loss} and gradient norm {norm}; the weights were left as "
                "they are. Lower the learning rate, or look for values in the batch that are not finite"
            )
        assert self.optimiser is not None, "a stage has begun"
        self.optimiser.step(share)
        self.masters.zero_grad()
        return norm

    def _validate(self, kind: Kind, sequences: Sequence[TrainingSequence]) -> None:
        vocabulary = self.model.config.get_text_config().vocab_size
        for index, sequence in enumerate(sequences):
            ids = np.frombuffer(tokens.concatenate([sequence.ids]), dtype="<i4")
            if len(ids) and not 0 <= ids.min() <= ids.max() < vocabulary:
                raise ValueError(f"sequence {index} holds token ids outside the model's vocabulary of {vocabulary}")
            if kind == "reinforce" and sequence.learned_tokens and not sequence.logprobs:
                raise ValueError(
                    f"sequence {index} has no sampled log-probabilities; reinforcement learning needs them"
                )


def trainer_on_threads(model: PreTrainedModel, threads: int) -> Trainer:
    """A trainer that shares a process's compute threads out as suits the model: a row each, or all on one row.

    Sets this process's number of threads per operation.
    """
    small = sum(parameter.numel() for parameter in model.parameters()) <= SMALL_PARAMETERS
    workers = threads if small and model.device.type == "cpu" else 1
    torch.set_num_threads(max(1, threads // workers))
    return Trainer(model, workers)


def _add(gradients: list[Tensor], more: Sequence[Tensor]) -> None:
    for gradient, another in zip(gradients, more, strict=True):
        gradient += another
