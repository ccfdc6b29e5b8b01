"""Rollouts on a real engine that say what a script says: the same workload can be run and simulated.

An engine is made to sample turns of the scripted sizes (no token ends a turn, `max_tokens` is the turn's size), calls
take the scripted time, and prompts and tool responses are random tokens of the scripted sizes. Everything else is as in
a training run.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from random import Random
from typing import Any

from actors.generator import GeneratorActor
from actors.messages import RunRollout
from actors.rollout import RolloutActor
from policies import tokens
from policies.dialogue import Dialogue, DialogueLimits, Execute, Finished, Sample, Turn, Verify
from policies.scripted import Rollout, Script, ScriptedTurn
from policies.tokens import PackedIds
from policies.trajectory import CallRecord, Problem, Verdict
from policies.workloads import Workload, read_scripted, verdict_of


class RepeatedWorkload(Script):
    """A workload of which each step is the first one, in other words: a script for repeats of a measurement."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload

    def rollout(self, sequence: str) -> Rollout:
        """See `Script.rollout`."""
        stage, _, group, sample = sequence.split("/")
        return self._workload.rollout(f"{stage}/0/{group}/{sample}")


class ForcedDialogue(Dialogue):
    """A dialogue in random tokens, of the sizes that a script gives."""

    def __init__(
        self, *, id: str, group: str, script: Script, vocabulary: int, problem: Problem, limits: DialogueLimits
    ) -> None:
        self._script, self._vocabulary = script, vocabulary
        self._open(id, problem, limits, self._random_ids(group, script.rollout(id).prompt_tokens))

    def next_action(self) -> Sample | Execute | Verify | Finished:
        action = super().next_action()
        if isinstance(action, Sample):
            said = self._script.turn(self.id, action.turn)
            return Sample(action.turn, min(action.max_tokens, said.n_tokens))
        return action

    def _said(self) -> ScriptedTurn:
        return self._script.turn(self.id, self.turns - 1)

    def _random_ids(self, name: str, count: int) -> bytes:
        rng = Random(name)
        return tokens.pack_ids([rng.randrange(self._vocabulary) for _ in range(count)])

    def _read(self, ids: PackedIds) -> Turn:
        said = self._said()
        ended = tokens.count(ids) == said.n_tokens
        return read_scripted(said, ended, f"{self.id}/{self.turns - 1}", self._limits.call)

    def _respond(self, records: Sequence[CallRecord]) -> PackedIds:
        count = sum(call.response_tokens for call in self._said().calls)
        return self._random_ids(f"{self.id}/{self.turns}", count)

    def _judge(self) -> Verdict:
        return verdict_of(self._said())


class ForcedRolloutActor(RolloutActor):
    """Plays `ForcedDialogue`s; `arguments` are those of `RolloutActor`, `workload` among them."""

    def __init__(self, *, vocabulary: int, workload: Script, **arguments: Any) -> None:
        super().__init__(model=None, workload=workload, **arguments)
        self._script, self._vocabulary = workload, vocabulary

    def _dialogue(self, request: RunRollout) -> Dialogue:
        return ForcedDialogue(
            id=request.id,
            group=request.group,
            script=self._script,
            vocabulary=self._vocabulary,
            problem=request.problem,
            limits=request.limits,
        )


class PinnedGeneratorActor(GeneratorActor):
    """A generator whose engine keeps to one core; `arguments` are those of `GeneratorActor`."""

    def __init__(self, *, core: int, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._core = core

    async def start(self) -> None:
        pin(self._core)  # threads that are made from here on are on this core, too
        await super().start()


def pin(core: int) -> None:
    """Keep this thread, and those that it will start, to a core.

    Engines get no priority over other actors: on shared cores these would answer late, which no real cluster does.
    """
    os.sched_setaffinity(0, {core})
