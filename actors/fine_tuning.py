"""The SFT stage: takes chats from a prepared file or makes demonstrations, and has the learner imitate them.

Broken programs are run in the sandbox, one of each shape, since what the interpreter says of them is what the model
will read later; what a program that prints a number prints is known without running it.
"""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from actors.messages import Learn, Report, RunCall, RunFineTuning
from actors.prepared import read_chats
from actors.system.actor import ActorRef, Port
from env.tool_call import ToolCall, ToolResult
from policies.batch import TrainingSequence
from policies.chat_data import training_sequence
from policies.chat_format import ChatFormat
from policies.curriculum import ProblemStream
from policies.demonstrations import expected_result, sequence_from_script, write_script
from policies.dialogue import DialogueLimits
from policies.stages import FineTuningOptions

log = logging.getLogger(__name__)

LEARN_DEADLINE_S = 3600.0


class FineTuning:
    """One SFT stage.

    Args:
        report: takes the figures of each step.
    """

    def __init__(
        self,
        port: Port,
        request: RunFineTuning,
        *,
        chat: ChatFormat,
        learner: ActorRef,
        environments: list[ActorRef],
        run_seed: int,
        report: Callable[[Report], None],
    ) -> None:
        self._port, self._chat, self._learner, self._environments = port, chat, learner, environments
        self._name, self._options, self._limits = request.name, request.options, request.limits
        self._run_seed, self._report = run_seed, report
        self._rng = random.Random(f"{run_seed}/{request.name}")
        self._failures: dict[str, tuple[str, ToolResult]] = {}

    async def run(self) -> dict[str, float]:
        """All steps of the stage; returns the figures of its last one."""
        options: FineTuningOptions = self._options
        sequences = await (self._chats() if self._options.data else self._demonstrations(self._limits))
        figures: dict[str, float] = {}
        batches = self._batches(sequences)
        for step in range(options.steps):
            blob = await self._port.blobs.put(tuple(next(batches)))
            learned = await self._port.ask(
                self._learner, Learn(step_id=f"{self._name}/{step}", kind="fine_tune", blob=blob.key), LEARN_DEADLINE_S
            )
            await self._port.blobs.drop(blob)
            figures = {f"learner_{name}": value for name, value in learned.metrics.items()}
            self._report(Report(kind="fine_tune", stage=self._name, step=step + 1, figures=figures))
        return figures

    async def _chats(self) -> list[TrainingSequence]:
        sequences, too_long = [], 0
        for sample in read_chats(Path(self._options.data[0].path)):
            sequence = training_sequence(sample, self._chat)
            if sequence.length <= self._limits.max_tokens:
                sequences.append(sequence)
            else:
                too_long += 1
            await self._port.clock.sleep(0)  # as in `_demonstrations`
        if not sequences:
            raise ValueError(
                f"all {too_long} chats of stages.{self._name} are longer than limits.max_tokens="
                f"{self._limits.max_tokens}; raise it"
            )
        log.info("stage %s: %d chats, %d too long", self._name, len(sequences), too_long)
        return sequences

    async def _demonstrations(self, limits: DialogueLimits) -> list[TrainingSequence]:
        stream = ProblemStream(self._options.problems, run_seed=self._run_seed, held_out=False)
        sequences = []
        for index in range(self._options.demonstrations):
            script = write_script(stream.posed(index), self._options.habits, self._rng, tools=limits.tools)
            results = [await self._failure(program, script.expression) for program in script.programs[:-1]]
            results += [expected_result(program, script.expression) for program in script.programs[-1:]]
            sequences.append(sequence_from_script(script, tuple(results), self._chat, limits.tool_response_characters))
            await self._port.clock.sleep(0)  # making thousands takes seconds: the director must stay reachable
        return sequences

    async def _failure(self, program: str, expression: str) -> ToolResult:
        """What the sandbox says of a broken program.

        Programs that differ in their digits only fail alike, so one of each shape is run, and its expression is put
        in the place of the other's.
        """
        shape = re.sub(r"\d", "0", program)
        if shape not in self._failures:
            call = ToolCall(id=f"{self._name}/{shape}", code=program, limits=self._limits.call)
            environment = self._environments[len(self._failures) % len(self._environments)]
            finished = await self._port.ask(environment, RunCall(call=call, trajectory=self._name), LEARN_DEADLINE_S)
            self._failures[shape] = (expression, finished.result)
        shown, result = self._failures[shape]
        return result.model_copy(update={"stderr": result.stderr.replace(shown, expression)})

    def _batches(self, sequences: list[TrainingSequence]) -> Iterator[list[TrainingSequence]]:
        """Endless batches: each epoch in an order of its own."""
        pending: list[TrainingSequence] = []
        while True:
            while len(pending) < self._options.batch:
                pending += self._rng.sample(sequences, len(sequences))
            batch, pending = pending[: self._options.batch], pending[self._options.batch :]
            yield batch
