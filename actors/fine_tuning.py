"""The SFT stage: takes chats from a prepared file or makes demonstrations, and has the learner imitate them.

Broken programs are run in the sandbox, one of each shape, since what the interpreter says of them is what the model
will read later; what a program that prints a number prints is known without running it.
"""

from __future__ import annotations

import logging
import random
import re
from pathlib import Path

from actors.environment_pool import EnvironmentPool
from actors.learn_step import learn
from actors.messages import RunFineTuning
from actors.prepared import read_chats
from actors.run_books import Stepped
from actors.sampling import SandboxBroken
from actors.system.actor import ActorRef, Port
from env.tool_call import ToolCall, ToolResult
from policies.batch import TrainingSequence
from policies.chat_data import training_sequence
from policies.chat_format import ChatFormat
from policies.curriculum import ProblemStream, ShuffledEpochs
from policies.demonstrations import Script, expected_result, sequence_from_script, write_script
from policies.dialogue import DialogueLimits
from policies.run_progress import Figures, StagePosition, StepFigures
from policies.stages import FineTuningOptions

log = logging.getLogger(__name__)


class FineTuning:
    """One SFT stage.

    Args:
        position: where to go on; None from the beginning.
        stepped: takes the position, the version and the figures after each step.
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
        position: StagePosition | None,
        stepped: Stepped,
    ) -> None:
        self._port, self._chat, self._learner = port, chat, learner
        self._environments = EnvironmentPool(port, environments)
        self._name, self._options, self._limits = request.name, request.options, request.limits
        self._run_seed, self._position, self._stepped = run_seed, position, stepped
        self._rng = random.Random(f"{run_seed}/{request.name}")
        self._failures: dict[str, tuple[str, ToolResult]] = {}

    async def run(self) -> Figures:
        """All steps of the stage that are left; returns the figures of its last one."""
        options: FineTuningOptions = self._options
        made = await (self._chats() if self._options.data else self._demonstrations(self._limits))
        sequences = self._that_fit(made)
        epochs = ShuffledEpochs(len(sequences), f"{self._run_seed}/{self._name}")
        figures: Figures = {}
        cursor = 0 if self._position is None else self._position.cursor
        for step in range(0 if self._position is None else self._position.steps, options.steps):
            batch = [sequences[item] for item in epochs.items(cursor, options.batch)]
            cursor += options.batch
            learned = await learn(
                self._port, self._learner, step_id=f"{self._name}/{step}", kind="fine_tune", batch=batch
            )
            figures = {f"learner_{name}": value for name, value in learned.metrics.items()}
            done = StepFigures(kind="fine_tune", stage=self._name, step=step + 1, figures=figures)
            await self._stepped(StagePosition(stage=self._name, steps=step + 1, cursor=cursor), learned.version, done)
        return figures

    async def _chats(self) -> list[TrainingSequence]:
        sequences = []
        for sample in read_chats(Path(self._options.data[0].path)):
            sequences.append(training_sequence(sample, self._chat))
            await self._port.clock.sleep(0)  # as in `_demonstrations`
        return sequences

    async def _demonstrations(self, limits: DialogueLimits) -> list[TrainingSequence]:
        stream = ProblemStream(self._options.problems, run_seed=self._run_seed, held_out=False)
        sequences = []
        for index in range(self._options.demonstrations):
            script = write_script(stream.posed(index), self._options.habits, self._rng, tools=limits.tools)
            results = [await self._failure(program, script) for program in script.programs[:-1]]
            results += [expected_result(program, script.expression) for program in script.programs[-1:]]
            sequences.append(sequence_from_script(script, tuple(results), self._chat, limits.tool_response_characters))
            await self._port.clock.sleep(0)  # making thousands takes seconds: the director must stay reachable
        return sequences

    def _that_fit(self, made: list[TrainingSequence]) -> list[TrainingSequence]:
        most = self._limits.max_tokens
        sequences = [sequence for sequence in made if sequence.length <= most]
        if not sequences:
            raise ValueError(
                f"all {len(made)} dialogues of stages.{self._name} are longer than limits.max_tokens={most}; raise it"
            )
        log.info("stage %s: %d dialogues, %d too long", self._name, len(sequences), len(made) - len(sequences))
        return sequences

    async def _failure(self, program: str, script: Script) -> ToolResult:
        """What the sandbox says of a broken program.

        Programs that differ in their digits only fail alike, so one of each shape is run, and its expression is put
        in the place of the other's.
        """
        shape = re.sub(r"\d", "0", program)
        if shape not in self._failures:
            name = f"{self._name}/{shape}"
            call = ToolCall(id=name, tool=script.tools[0], code=program, limits=self._limits.call)
            result = await self._environments.run(call, name)
            self._environments.end_session(name)
            if result.status == "sandbox_failure":  # the model must not learn that from it
                raise SandboxBroken(f"a demonstration's program could not be run: {result.reason}")
            self._failures[shape] = script.expression, result
        shown, result = self._failures[shape]
        return result.model_copy(update={"stderr": result.stderr.replace(shown, script.expression)})
