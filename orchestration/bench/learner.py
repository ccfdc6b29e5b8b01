"""What a learner step costs: our packed step against a plain padded one with full logits, at equal work.

Each side has a process of its own, both are alive at once and take turns, step by step, so that a slow minute of the
machine hits both. Tokens per second count real tokens, never padding. Peak memory counts from where a process rests,
and is measured in a step of its own: the one whose padded passes are the largest.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any, Literal, get_args

from pydantic import BaseModel

from actors.learning.model import ModelSpec
from orchestration.bench.learner_sides import (
    Shape,
    SideName,
    StepMemory,
    StepTime,
    padded_tokens,
    passes,
    sequences_for,
    serve,
    steps_of,
)
from orchestration.recipe import RecipeError
from orchestration.scratch_folder import scratch_folder
from orchestration.side_by_side import INTERRUPTS, deaf_to
from orchestration.tiny_model import write_tokenizer

ModelName = Literal["quickstart", "llama_135m"]
LONGEST = 256
"""Tokens to which the file's lengths are scaled: the quickstart's longest sequence."""
PARTS: dict[ModelName, int] = {"quickstart": 1, "llama_135m": 4}
"""Into how many steps the file is cut: sides take turns after each, and a step of the large model takes a minute."""
ROUNDS: dict[ModelName, int] = {"quickstart": 8, "llama_135m": 4}
ANSWER_SECONDS = 3600.0


class SideFigures(BaseModel):
    """One side, over all rounds."""

    tokens_per_s: float
    """Real tokens, per second of wall-clock time."""
    seconds: float
    resting_bytes: int
    """Resident memory between steps: code, weights, moments."""
    peak_bytes: int
    """The most resident memory during a step, above `resting_bytes`."""
    loss: float
    """Of the first step."""


class ModelFigures(BaseModel):
    """Both sides on one model."""

    tokens_per_s_ratio: float
    """`packed` over `plain`."""
    peak_memory_ratio: float
    """`packed` over `plain`."""
    packed: SideFigures
    plain: SideFigures
    tokens: int
    """Real tokens of all steps of a side."""
    padded_tokens: int
    """What the plain steps compute in their place."""
    passes_per_step: int
    rounds: int
    """Steps of each side."""


class LearnerFigures(BaseModel):
    """The benchmark's result."""

    models: dict[ModelName, ModelFigures]
    threads: int


def shape_of(name: ModelName) -> Shape:
    """The quickstart's model, or a Llama of the shape of SmolLM2-135M; both with random float32 weights."""
    if name == "quickstart":
        with scratch_folder("greenroom-bench-") as folder:
            vocabulary = len(write_tokenizer(folder, LONGEST))
        return Shape(ModelSpec(layers=3, max_positions=LONGEST, initializer_range=0.05), vocabulary)
    spec = ModelSpec(
        hidden_size=576,
        layers=30,
        heads=9,
        kv_heads=3,
        intermediate_size=1536,
        max_positions=8192,
        rope_theta=100_000.0,
    )
    return Shape(spec, 49_152)


def known_models(names: Sequence[str] | None) -> list[ModelName]:
    """Checked names of models; all of them for None. Raises `RecipeError` for a name that is none."""
    known = {name: name for name in get_args(ModelName)}
    try:
        return [known[name] for name in names or known]
    except KeyError as error:
        raise RecipeError(f"no model {error} to measure; choose from {', '.join(known)}") from None


def bench_learner(
    threads: int,
    models: Sequence[ModelName] = get_args(ModelName),
    rounds: int | None = None,
    *,
    say: Callable[[str], None] = lambda text: None,
) -> LearnerFigures:
    """Measure both sides on each model.

    Args:
        threads: compute threads of each side; only one side computes at a time.
        rounds: steps of each side; by default as many as the model's size allows.
        say: hears of each step.

    Raises `RuntimeError` if the two sides' losses differ, or a side's process died.
    """
    return LearnerFigures(
        models={name: _bench_model(name, threads, rounds or ROUNDS[name], say) for name in models}, threads=threads
    )


def _bench_model(name: ModelName, threads: int, rounds: int, say: Callable[[str], None]) -> ModelFigures:
    say(f"{name}: starting both sides")
    shape, parts = shape_of(name), PARTS[name]
    steps = steps_of(sequences_for(shape.vocabulary, LONGEST), parts)
    largest = max(range(parts), key=lambda number: max(padded_tokens(batch) for batch in passes(steps[number])))
    packed_steps: list[StepTime] = []
    plain_steps: list[StepTime] = []
    with ExitStack() as ends:
        # Each is ready before the next one starts: both warming up at once would take the memory of both.
        packed_side, plain_side = (
            ends.enter_context(_Side(side, shape, parts, threads)) for side in get_args(SideName)
        )
        packed_memory, plain_memory = packed_side.memory(largest), plain_side.memory(largest)
        for number in range(rounds):
            say(f"{name}: step {number + 1} of {rounds}, each side in turn")
            packed_steps.append(packed_side.time(number % parts))
            plain_steps.append(plain_side.time(number % parts))
    taken = [steps[number % parts] for number in range(rounds)]
    total = sum(sequence.length for step in taken for sequence in step)
    packed, plain = _side_figures(packed_steps, packed_memory, total), _side_figures(plain_steps, plain_memory, total)
    if abs(packed.loss - plain.loss) > 1e-3 * max(abs(plain.loss), 1e-2):
        raise RuntimeError(f"the sides do not do the same work: loss {packed.loss} packed, {plain.loss} plain")
    batches = [batch for step in taken for batch in passes(step)]
    return ModelFigures(
        tokens_per_s_ratio=packed.tokens_per_s / plain.tokens_per_s,
        peak_memory_ratio=packed.peak_bytes / plain.peak_bytes,
        packed=packed,
        plain=plain,
        tokens=total,
        padded_tokens=sum(padded_tokens(batch) for batch in batches),
        passes_per_step=len(passes(steps[0])),
        rounds=rounds,
    )


def _side_figures(steps: Sequence[StepTime], memory: StepMemory, tokens: int) -> SideFigures:
    """`tokens`: of all steps."""
    seconds = sum(step.seconds for step in steps)
    return SideFigures(
        tokens_per_s=tokens / seconds,
        seconds=seconds,
        resting_bytes=memory.resting_bytes,
        peak_bytes=memory.peak_bytes,
        loss=steps[0].loss,
    )


class _Side:
    """The process of one side; entering it starts the process and waits until it is ready."""

    def __init__(self, name: SideName, shape: Shape, parts: int, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._name = name
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=serve,
            args=(theirs, os.getpid(), name, shape, LONGEST, parts, threads),
            name=f"learner-bench-{name}",
            daemon=True,
        )
        self._theirs: Connection = theirs

    def __enter__(self) -> _Side:
        with deaf_to(*INTERRUPTS):
            self._process.start()
        self._theirs.close()  # so that its death ends the connection
        with contextlib.ExitStack() as undo:
            undo.push(self.__exit__)
            answer = self._answer()
            assert answer == "ready", answer
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()
        self._connection.close()

    def time(self, number: int) -> StepTime:
        self._connection.send((number, "time"))
        return self._answer()

    def memory(self, number: int) -> StepMemory:
        self._connection.send((number, "memory"))
        return self._answer()

    def _answer(self) -> Any:
        try:
            if self._connection.poll(ANSWER_SECONDS):
                return self._connection.recv()
        except EOFError:
            raise RuntimeError(f"the {self._name} side died; if it wrote no reason, memory ran out") from None
        raise RuntimeError(f"the {self._name} side took more than {ANSWER_SECONDS:.0f} s for a step")
