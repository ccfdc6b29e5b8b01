"""Replay to the learner: training steps from stored groups, without a generator and without a sandbox.

Invariants:
- groups, rollouts and random draws come in the order in which the run had them, so that the same recipe gives the same
  batches; with the same weights to start from, the same steps to the last bit;
- the record is never changed: what is trained here is written elsewhere, if at all.

A stage is replayed from the weights that the stage before it ended with. In float32 a checkpoint holds them whole; in
bfloat16 the optimiser works on float32 copies that a checkpoint lacks, so that only stages after the first one replayed
go on exactly as they did, and the first step differs in the last bits.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from actors.learning.checkpoint import write_checkpoint
from actors.learning.model import load_model, named_weights
from actors.learning.trainer import Trainer, trainer_on_threads
from orchestration.recipe import Recipe, RecipeError
from orchestration.replay.recorded_run import RecordedRun
from policies.grouping import LearningBatch, StepRounds, resampling_random
from policies.run_progress import Figures
from policies.stages import ReinforcementOptions
from policies.trajectory import Trajectory

MEASURED = (
    "learner_learn_seconds",
    "learner_tokens_per_s",
    "learner_peak_memory_bytes",
    "learner_peak_gpu_memory_bytes",
)
"""Figures of the learner that are about the machine: another time they are others."""


@dataclass(frozen=True, slots=True)
class StepReplay:
    """One training step: what the run has on record, and what came of it here."""

    stage: str
    step: int
    """From 1, as in the metrics."""
    recorded: Figures
    """Empty where the run kept no metrics."""
    replayed: Figures
    differing: tuple[str, ...]
    """Figures of the learner that are not the same to the last bit; figures about the machine are left out."""


@dataclass(frozen=True, slots=True)
class WeightsComparison:
    """The weights at the end of a stage against the run's checkpoint."""

    stage: str
    tensors: int
    differing: tuple[str, ...]
    """Tensors that are not the same to the last bit."""
    largest_difference: float


@dataclass(slots=True)
class LearnerReplay:
    """What came of it all."""

    same_recipe: bool
    """Whether every setting that the learner's result depends on is as in the run."""
    started_from: str
    steps: list[StepReplay] = field(default_factory=list)
    weights: list[WeightsComparison] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def exact(self) -> bool:
        """Whether all that could be compared is the same to the last bit, and something could be."""
        compared = any(step.recorded for step in self.steps) or bool(self.weights)
        return (
            compared and not any(step.differing for step in self.steps) and not any(w.differing for w in self.weights)
        )


def replay_learner(
    run: RecordedRun,
    recipe: Recipe,
    *,
    stages: Sequence[str] | None = None,
    start: Path | None = None,
    out: Path | None = None,
    on_stage: Callable[[str, int], None] = lambda name, steps: None,
    on_step: Callable[[StepReplay], None] = lambda step: None,
) -> LearnerReplay:
    """Train on a run's stored groups.

    Args:
        recipe: how to learn; the run's own for a repetition.
        stages: stages of reinforcement, in a row; by default all that have stored rollouts.
        start: folder of the model to begin with; by default what the first of these stages began with.
        out: folder that a checkpoint is written to after each stage.
        on_stage, on_step: told of progress.

    Raises `RecipeError` for stages that can't be replayed, and what `load_model` and `Trainer.step` raise.
    """
    chosen = _chosen(run, recipe, stages)
    folder = start or run.weights_of(recipe, next(iter(chosen)), "--from")
    torch.manual_seed(recipe.seed)
    torch.use_deterministic_algorithms(True)  # an operation that can't give the same bits twice raises
    trainer = trainer_on_threads(load_model(folder, recipe.model.dtype), recipe.learner.threads)
    replay = LearnerReplay(same_recipe=_same(run.recipe, recipe, chosen), started_from=str(folder))
    if recipe.model.dtype != "float32":
        replay.notes.append(
            f"model.dtype is {recipe.model.dtype}: checkpoints lack the optimiser's float32 weights, so the first "
            "stage replayed starts from rounded ones"
        )
    first = next(iter(chosen))
    if not (chosen[first].reset_optimiser and chosen[first].refresh_reference):
        replay.notes.append(
            f"stage {first} went on with the optimiser or the reference of the stage before, which checkpoints "
            "lack: it starts afresh here, and its figures differ; replay the stage before with it"
        )
    for name, options in chosen.items():
        recorded_options = _recorded_options(run, name) or options
        on_stage(name, len({row.step for row in run.rows if row.stage == name}))
        trainer.begin_stage(
            options.optimiser,
            options.objective,
            options.steps,
            options.temperature,
            reset_optimiser=options.reset_optimiser,
            refresh_reference=options.refresh_reference,
        )
        for step in _replay_stage(run, name, trainer, options, recorded_options, recipe.seed):
            replay.steps.append(step)
            on_step(step)
        if out is not None:
            write_checkpoint(trainer.model, out / name, tokenizer_from=folder)
        kept = run.checkpoint(name)
        if kept is not None:
            replay.weights.append(compare_weights(name, named_weights(trainer.model), kept))
    return replay


def _replay_stage(
    run: RecordedRun,
    name: str,
    trainer: Trainer,
    options: ReinforcementOptions,
    recorded_options: ReinforcementOptions,
    seed: int,
) -> Iterator[StepReplay]:
    metrics = run.metrics("step", name)
    recorded_seed = _recorded_seed(run, seed)
    for step, groups in run.steps(name):
        batch = learning_batch(groups, options, resampling_random(seed, name, step))
        figures: Figures = {**batch.figures(), **advantage_figures(batch), "learner_skipped": 1.0}
        if batch.sequences:
            figures |= {f"learner_{key}": value for key, value in trainer.step("reinforce", batch.sequences).items()}
        recorded: Figures = {}
        if step in metrics:
            recorded["learner_skipped"] = 1.0
            recorded |= {key: float(value) for key, value in metrics[step].items() if isinstance(value, int | float)}
            recorded |= advantage_figures(
                learning_batch(groups, recorded_options, resampling_random(recorded_seed, name, step))
            )
        yield StepReplay(name, step + 1, recorded, figures, _differing(recorded, figures) if recorded else ())


def _differing(recorded: Figures, replayed: Figures) -> tuple[str, ...]:
    """Figures that both have and that differ, and figures of the learner that only one has."""
    of_learner = {name for name in recorded.keys() | replayed.keys() if name.startswith("learner_")} - set(MEASURED)
    names = of_learner | (recorded.keys() & replayed.keys())
    return tuple(sorted(name for name in names if recorded.get(name) != replayed.get(name)))


def learning_batch(
    groups: Sequence[Sequence[Trajectory]], options: ReinforcementOptions, rng: random.Random
) -> LearningBatch:
    """What is learned from a step's stored groups, in the rounds that `options` make of them.

    Options that want fewer groups than were sampled learn from those that are left in one more round.
    """
    rounds, first = StepRounds(options, rng), 0
    while first < len(groups):
        count = rounds.wanted or len(groups)
        rounds.add(groups[first : first + count])
        first += count
    return rounds.batch


def advantage_figures(batch: LearningBatch) -> dict[str, float]:
    """How large the advantages of a batch are."""
    values = [sequence.advantage for sequence in batch.sequences]
    if not values:
        return {}
    return {
        "advantage_mean_abs": sum(map(abs, values)) / len(values),
        "advantage_min": min(values),
        "advantage_max": max(values),
        "advantage_positive_share": sum(value > 0 for value in values) / len(values),
    }


def compare_weights(stage: str, weights: dict[str, Tensor], checkpoint: Path) -> WeightsComparison:
    """Weights against those of a checkpoint, tensor by tensor, bit by bit.

    Raises `ValueError` if the checkpoint is of another model.
    """
    kept: dict[str, Tensor] = {}
    for file in sorted(checkpoint.glob("*.safetensors")):
        kept |= load_file(file)
    names = weights.keys() & kept.keys()
    if kept.keys() - names or any(weights[name].shape != kept[name].shape for name in names):
        raise ValueError(f"{checkpoint} holds another model than the one that was trained; compare like with like")
    differing = [name for name in sorted(names) if not _same_bits(weights[name], kept[name])]
    largest = max((float((weights[n].double() - kept[n].double()).abs().max()) for n in differing), default=0.0)
    return WeightsComparison(stage, len(names), tuple(differing), largest)


def _same_bits(one: Tensor, other: Tensor) -> bool:
    if one.dtype != other.dtype:
        return False
    return torch.equal(one.cpu().contiguous().view(torch.uint8), other.cpu().contiguous().view(torch.uint8))


def _chosen(run: RecordedRun, recipe: Recipe, stages: Sequence[str] | None) -> dict[str, ReinforcementOptions]:
    """The stages to replay. Raises `RecipeError`."""
    stored = run.reinforced(recipe)
    if not stored:
        raise RecipeError(
            f"none of the recipe's stages of reinforcement has rollouts in the archive, which holds "
            f"{', '.join(run.stages()) or 'none'}; give the recipe of the run with --recipe"
        )
    for name in stages or ():
        if name not in stored:
            raise RecipeError(f"--stages: {name!r} can't be replayed; choose of {', '.join(stored)}")
    return {name: options for name, options in stored.items() if stages is None or name in stages}


def _recorded_options(run: RecordedRun, stage: str) -> ReinforcementOptions | None:
    options = run.recipe.stages.get(stage) if run.recipe is not None else None
    return options if isinstance(options, ReinforcementOptions) else None


def _recorded_seed(run: RecordedRun, otherwise: int) -> int:
    return otherwise if run.recipe is None else run.recipe.seed


def _same(recorded: Recipe | None, recipe: Recipe, stages: dict[str, Any]) -> bool:
    """Whether the settings that the learner's result depends on are those of the run."""
    if recorded is None:
        return False

    def settings(of: Recipe) -> tuple[Any, ...]:
        return of.seed, of.model, of.learner, [of.stages.get(name) for name in stages]

    return settings(recorded) == settings(recipe)
