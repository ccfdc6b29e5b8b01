"""The rollout actor: plays many dialogues at once on one event loop.

Invariants:
- a lease is held from before the first turn to the last, tool calls included, and it is given back whatever
  happens; an answer that has to be compared is compared after that, elsewhere: this loop never waits for mathematics;
- an answer from a generator that died is never used: the dialogue acquires a new lease and sends its history;
- each dialogue ends with a stored trajectory and one answer to whoever asked for it, or with an error to them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from actors.environment_pool import EnvironmentPool
from actors.leases import Leases
from actors.messages import (
    AbandonRollouts,
    DescribeLeases,
    DescribeRollouts,
    LeaseGranted,
    LeasesHeld,
    RolloutFinished,
    RolloutsStatus,
    RunRollout,
    SampleTurn,
    StoreTrajectory,
    TurnSampled,
)
from actors.supervision import Watched, patiently, work_of
from actors.system.actor import ActorLost, ActorRef, DeadlineExceeded, handles, seed_for
from actors.system.clock import seconds_since
from actors.system.kill_point import reached
from actors.tokenizer import PromptOptions, load_chat_format
from env.tool_call import ToolCall, ToolResult
from policies.balancing import Lease, Wish
from policies.dialogue import Dialogue, Execute, Finished, Sample, Verify
from policies.scripted import Script
from policies.trajectory import Trajectory, Verdict
from policies.workloads import ScriptedDialogue

log = logging.getLogger(__name__)

TURN_DEADLINE_S = 600.0
"""A generator that has not finished one turn by then is asked whether it gets on; it is left if it does not."""
LOOK_DEADLINE_S = 60.0
"""For what the balancer has done: shorter than whoever asks that of this actor waits."""
ARCHIVE_DEADLINE_S = 120.0
TRIES = 3
"""How often a turn is tried again after the generator that had it died."""


class RolloutActor(Watched):
    """Plays dialogues.

    Args:
        model: folder with the tokenizer; None with a workload.
        run_seed: seed of the run; each turn samples from a stream of its own.
        workload: in a simulation, what the dialogues say; they have no text then.
    """

    def __init__(
        self,
        *,
        model: str | None,
        prompt: PromptOptions,
        run_seed: int,
        balancer: ActorRef,
        environments: list[ActorRef],
        archive: ActorRef,
        workload: Script | None = None,
    ) -> None:
        assert (model is None) != (workload is None), "dialogues have text or a script"
        self._workload = workload
        self._model, self._prompt, self._run_seed = model, prompt, run_seed
        self._balancer, self._archive = balancer, archive
        self._environment_refs = environments
        self._running: dict[str, asyncio.Task[RolloutFinished]] = {}
        self.turns_again = 0
        self.actions_done = 0
        """Steps of dialogues: turns, calls, verifications."""

    async def start(self) -> None:
        self._chat = None if self._model is None else load_chat_format(self._model, self._prompt)
        self._environments = EnvironmentPool(self.port, self._environment_refs)
        self.leases = Leases(self.port, self._balancer)

    async def work_done(self) -> int:
        """Of dialogues, or of those that they wait for."""
        return self.actions_done + await work_of(self.port, self._balancer, LOOK_DEADLINE_S)

    @handles(RunRollout)
    async def on_run(self, request: RunRollout) -> RolloutFinished:
        task = self._running.get(request.id)
        if task is None:
            task = asyncio.ensure_future(self._play(request))
            self._running[request.id] = task
            task.add_done_callback(lambda _: self._running.pop(request.id, None))
        return await asyncio.shield(task)

    @handles(DescribeRollouts)
    async def on_describe(self, _: DescribeRollouts) -> RolloutsStatus:
        return RolloutsStatus(
            playing=len(self._running),
            leases=len(self.leases.held()),
            turns_again=self.turns_again,
            calls_elsewhere=self._environments.retried_elsewhere,
        )

    @handles(AbandonRollouts)
    async def on_abandon(self, _: AbandonRollouts) -> None:
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    @handles(DescribeLeases)
    async def on_describe_leases(self, _: DescribeLeases) -> LeasesHeld:
        return LeasesHeld(leases=self.leases.held())

    async def _play(self, request: RunRollout) -> RolloutFinished:
        trajectory = await _Play(self, request, self._dialogue(request)).to_the_end()
        reached("verification")
        await patiently(self.port, self._archive, StoreTrajectory(trajectory=trajectory), ARCHIVE_DEADLINE_S)
        return RolloutFinished(trajectory=trajectory)

    def _dialogue(self, request: RunRollout) -> Dialogue:
        if self._workload is not None:
            return ScriptedDialogue(
                id=request.id,
                group=request.group,
                workload=self._workload,
                problem=request.problem,
                limits=request.limits,
            )
        assert self._chat is not None, "start() loads it"
        return Dialogue(id=request.id, chat=self._chat, problem=request.problem, limits=request.limits)

    def run_call(self, call: ToolCall, trajectory: str) -> Coroutine[Any, Any, ToolResult]:
        """Run one call; one whose environment died is tried on another."""
        return self._environments.run(call, trajectory)

    def end_session(self, trajectory: str) -> None:
        """The trajectory runs no more code."""
        self._environments.end_session(trajectory)

    async def verify_answer(self, extracted: str, gold: str) -> Verdict:
        """The verdict of an environment; where one died, of another. Raises `ActorLost` if none gives any."""
        return await self._environments.verify(extracted, gold)

    def stop_ids(self) -> tuple[int, ...]:
        """The tokens that end a model turn."""
        return () if self._chat is None else self._chat.stop_ids

    def turn_seed(self, rollout: str, turn: int) -> int:
        """The seed of one turn's random stream, 63 bits."""
        return seed_for(self._run_seed, f"{rollout}#{turn}") >> 1


class _Play:
    """One dialogue being played: the lease it holds, and how much of its history the generator has."""

    def __init__(self, actor: RolloutActor, request: RunRollout, dialogue: Dialogue) -> None:
        self._actor, self._request, self._dialogue = actor, request, dialogue
        self._granted: LeaseGranted | None = None
        self._generator = ActorRef("")
        self._known = 0
        self._waited_seconds = 0.0
        self._queued = False
        self._final_tokens: int | None = None

    async def to_the_end(self) -> Trajectory:
        run = self._actor.run_call
        try:
            while True:
                match self._dialogue.next_action():
                    case Sample() as sample:
                        await self._sample(sample)
                    case Execute(calls):
                        self._dialogue.executed(await _in_order([run(call, self._request.id) for call in calls]))
                    case Verify(extracted, gold):
                        self._final_tokens = self._dialogue.length
                        self._release()  # the cache is of more use to others
                        self._actor.end_session(self._request.id)
                        self._dialogue.verified(await self._actor.verify_answer(extracted, gold))
                    case Finished() as finished:
                        if finished.finish != "sandbox_failure":
                            self._final_tokens = self._dialogue.length
                        return self._trajectory(finished)
                self._actor.actions_done += 1
        finally:
            self._release()
            self._actor.end_session(self._request.id)

    async def _sample(self, sample: Sample) -> None:
        for _ in range(TRIES):
            try:
                sampled = await self._ask_generator(sample)
            except (ActorLost, DeadlineExceeded) as lost:
                log.warning("rollout %s: %s; acquiring another lease", self._request.id, lost)
                self._release()
                self._actor.turns_again += 1
                continue
            self._take_in(sampled)
            self._known = self._dialogue.length
            if not self._dialogue.ended:  # else the length comes with the lease
                self._actor.leases.say_progress(self._lease(), self._dialogue.length)
            return
        raise ActorLost(f"rollout {self._request.id}: {TRIES} generators were lost in one turn; see their logs")

    def _take_in(self, sampled: TurnSampled) -> None:
        dialogue = self._dialogue
        if isinstance(dialogue, ScriptedDialogue):
            assert sampled.turn is not None, "the engine of a simulation answers with scripted turns"
            dialogue.said(sampled.turn, sampled.finish == "stop", sampled.version, sampled.earlier)
        else:
            dialogue.sampled(sampled.ids, sampled.logprobs, sampled.version, sampled.earlier)

    async def _ask_generator(self, sample: Sample) -> TurnSampled:
        if self._granted is None:
            await self._acquire()
        else:
            await self._actor.leases.may_begin(self._lease(), sample.turn)
        sampled = await self._ask_turn(sample)
        if sampled.finish == "history_missing":
            self._known = 0
            sampled = await self._ask_turn(sample)
        if sampled.finish in ("history_missing", "aborted"):
            raise ActorLost(f"{self._lease().generator} has lost the rollout ({sampled.finish})")
        return sampled

    def _ask_turn(self, sample: Sample) -> Coroutine[Any, Any, TurnSampled]:
        lease, dialogue = self._lease(), self._dialogue
        scripted = isinstance(dialogue, ScriptedDialogue)
        turn = SampleTurn(
            lease=lease,
            turn=sample.turn,
            known=self._known,
            ids=b"" if scripted else dialogue.ids_from(self._known),
            counted=dialogue.counted() if scripted else None,
            max_tokens=sample.max_tokens,
            temperature=self._request.temperature,
            stop_ids=self._actor.stop_ids(),
            seed=self._actor.turn_seed(self._request.id, sample.turn),
            seat=self._request.seat,
        )
        return self._actor.port.ask(self._generator, turn, TURN_DEADLINE_S, unless_at_work=True)

    async def _acquire(self) -> None:
        start = self._actor.port.clock.now_ns()
        self._granted = await self._actor.leases.acquire(
            Wish(
                # A name of its own for each lease: what is said of an earlier one can't hit this one.
                rollout=f"{self._request.id}@{self._actor.port.fresh_id()}",
                prompt_tokens=self._dialogue.length,
                max_tokens=self._request.limits.max_tokens,
                group=self._request.group,
                generator="" if self._request.seat is None else self._request.seat.generator,
            )
        )
        assert self._granted.lease is not None, "a refused wish has raised"
        self._generator = ActorRef(self._granted.lease.generator)
        self._known = 0
        self._queued |= self._granted.queued
        self._waited_seconds += seconds_since(self._actor.port.clock, start)

    def _release(self) -> None:
        if self._granted is not None:
            self._actor.leases.give_back(self._granted, self._final_tokens)
            self._granted = None

    def _lease(self) -> Lease:
        assert self._granted is not None and self._granted.lease is not None
        return self._granted.lease

    def _trajectory(self, finished: Finished) -> Trajectory:
        dialogue, request = self._dialogue, self._request
        return Trajectory(
            id=request.id,
            group=request.group,
            sample=request.sample,
            stage=request.stage,
            step=request.step,
            problem=request.problem,
            spans=tuple(dialogue.spans),
            calls=tuple(dialogue.calls),
            turns=dialogue.turns,
            answer_tags=dialogue.answer_tags,
            finish=finished.finish,
            verdict=finished.verdict,
            reward=float(finished.verdict.correct),
            generator=self._generator.name,
            waited_seconds=self._waited_seconds,
            queued=self._queued,
        )


async def _in_order[T](work: list[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of coroutines run side by side, in the order given."""
    return [await work[0]] if len(work) == 1 else list(await asyncio.gather(*work))
