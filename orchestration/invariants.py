"""What must hold in every virtual run, checked while it runs; the first breach ends it.

1. Conservation: each rollout that was asked for has finished, or was dropped with a reason, when the run ends.
2. A rollout is learned from at most once, and a step id gives one version; anew after weights were restored.
3. An engine's KV stays within its capacity, and no strategy that promises KV promises more than its budget.
4. A lease is used by nobody after it has come back; at the end all have come back, and engines hold no requests.
5. The weights that sample are those that the gate opened with, or, in asynchronous training, newer ones that the
   learner has published: versions never go back, on no generator.
6. Progress: while rollouts are out, something comes of one of them within `HORIZON_S`, or engines or learner work.
7. Work is conserved: no rollout waits for a lease while a generator that lives has none, unless the gate is closed.
8. No token is learned from by weights that are more than the stage's `max_staleness` newer than those that sampled it.

(That whoever waits in vain is noticed is up to the loop, which raises `Stalled`; that answers of dead incarnations are
not heard, to the stage. Token spans carry their versions, and have as many log-probabilities as tokens: `Span` checks.)
"""

from __future__ import annotations

from collections.abc import Callable

from actors.balancer import BalancerActor
from actors.generator import GeneratorActor
from actors.messages import (
    BalancerStatus,
    CallFinished,
    Learn,
    Learned,
    LeaseGranted,
    OpenGate,
    ReleaseLease,
    RestoreCheckpoint,
    RolloutFinished,
    RunReinforcement,
    RunRollout,
    SampleTurn,
    TurnSampled,
    WeightsPublished,
)
from actors.system.actor import ActorRef
from actors.system.message import Message
from actors.system.trace import Event
from actors.system.virtual_loop import NS
from actors.system.virtual_stage import VirtualStage
from orchestration.cast import Cast
from policies.batch import TrainingSequence
from policies.scripted import CountedTokens
from policies.trajectory import WeightsVersion

HORIZON_S = 1500.0
"""Longer than any deadline of a turn or a call."""
LOOK_S = 1.0
"""Between two looks at the balancer's books."""
LEAK_S = 600.0
"""How long after the last rollout a lease may still be on its way home: longer than faults can hold it up."""
SETTLE_S = 90.0
"""What is still on its way at the end arrives within so long (a mailbox gives up after a minute)."""


class Violation(AssertionError):
    """An invariant is broken; the text says which, when and by whom."""


class Invariants:
    """Listens to a stage's trace; what it finds broken ends the run with a `Violation`.

    Args:
        most_promised: of a generator's KV, as a multiple of its capacity; None for strategies that promise none.
    """

    def __init__(self, stage: VirtualStage, cast: Cast, *, most_promised: float | None) -> None:
        self._stage, self._most_promised = stage, most_promised
        self._balancer = ActorRef(cast.balancer.name)
        self._generators = [ActorRef(part.name) for part in cast.generators]
        self._refs = {ref.name: ref for ref in self._generators}
        self._submitted: dict[str, None] = {}
        self._finished: dict[str, None] = {}
        self._learned: dict[str, str] = {}
        self._steps: dict[str, WeightsVersion] = {}
        self._leases: dict[str, str] = {}
        self._released: dict[str, None] = {}
        self._version = self._published = WeightsVersion(0, 0)
        self._max_staleness = 0
        self._oldest: dict[str, WeightsVersion] = {}
        self._sampled_by: dict[str, WeightsVersion] = {}
        self._learner = ActorRef(cast.learner.name)
        self._progress_ns = stage.loop.now_ns()
        self._work_done = self._work()
        self._idle_looks = 0
        self._ended = False
        asked: dict[type[Message], Callable[[Event], None]] = {
            RunReinforcement: self._on_stage,
            RunRollout: self._on_submitted,
            SampleTurn: self._on_turn_asked,
            Learn: self._on_learn,
            OpenGate: self._on_open,
            ReleaseLease: self._on_released,
            RestoreCheckpoint: self._on_restored,
        }
        answered: dict[type[Message], Callable[[Event], None]] = {
            LeaseGranted: self._on_granted,
            TurnSampled: self._on_sampled,
            CallFinished: self._on_progress,
            RolloutFinished: self._on_finished,
            Learned: self._on_learned,
            WeightsPublished: self._on_published,
        }
        stage.trace.listen({("ask", message): rule for message, rule in asked.items()})
        stage.trace.listen({("tell", message): rule for message, rule in asked.items()})
        stage.trace.listen({("answer", message): rule for message, rule in answered.items()})
        self._look()

    async def at_the_end(self, dropped: int) -> None:
        """Wait until what is under way has arrived, then look at what is left. Raises `Violation`.

        `dropped`: rollouts that the steps' reports own up to having dropped.
        """
        self._ended = True
        missing = [rollout for rollout in self._submitted if rollout not in self._finished]
        if len(missing) > dropped:
            self._broken(f"{len(missing)} rollouts ({missing[0]}) did not end, {dropped} were dropped: some are lost")
        await self._stage.loop.sleep(SETTLE_S)
        status = self._books()
        held = sum(load.sessions for load in status.loads)
        if held or status.waiting:
            left = ", ".join(list(self._leases)[:3])
            self._broken(f"{held} leases and {status.waiting} wishes are left at the end ({left}): a lease leaked")
        for ref in self._generators:
            if self._stage.runs(ref) and (running := self._generator(ref).engine.usage().running):
                self._broken(f"{ref.name} still runs {running} requests at the end")

    # --- rules ------------------------------------------------------------------------------------

    def _on_stage(self, event: Event) -> None:
        message = event.message
        assert isinstance(message, RunReinforcement)
        self._max_staleness = message.options.max_staleness

    def _on_published(self, event: Event) -> None:
        message = event.message
        assert isinstance(message, WeightsPublished)
        self._published = max(self._published, message.version)
        self._on_progress(event)

    def _on_submitted(self, event: Event) -> None:
        message = event.message
        assert isinstance(message, RunRollout)
        self._submitted[message.id] = None
        self._progress_ns = self._stage.loop.now_ns()

    def _on_finished(self, event: Event) -> None:
        message = event.message
        assert isinstance(message, RolloutFinished)
        trajectory = message.trajectory
        if trajectory.id not in self._submitted:
            self._broken(f"{event.source} finished {trajectory.id}, which nobody asked for")
        self._finished[trajectory.id] = None
        self._oldest[trajectory.id] = min(trajectory.versions, default=self._version)
        self._on_progress(event)

    def _on_learn(self, event: Event) -> None:
        message = event.message
        assert isinstance(message, Learn)
        batch: tuple[TrainingSequence, ...] = self._stage.blob(message.blob) or ()
        learner = max(self._steps.values(), default=self._version)
        here: dict[str, None] = {}
        for sequence in batch:
            assert isinstance(sequence.ids, CountedTokens), "virtual runs count tokens"
            rollout = sequence.ids.sequence
            known = self._learned.setdefault(rollout, message.step_id)
            if rollout in here or known != message.step_id:
                self._broken(f"{rollout} is learned from twice, in {known} and {message.step_id}: a doubled rollout")
            if rollout not in self._finished:
                self._broken(f"{rollout} is learned from in {message.step_id}, but has not finished")
            behind = learner.step - self._oldest[rollout].step
            if behind > self._max_staleness:
                self._broken(
                    f"{rollout} is learned from in {message.step_id}, {behind} versions after it was sampled, but at "
                    f"most {self._max_staleness} are allowed: it is too old"
                )
            here[rollout] = None
        self._on_progress(event)

    def _on_learned(self, event: Event) -> None:
        message = event.message
        assert isinstance(message, Learned) and isinstance(event.request, Learn)
        step_id, version = event.request.step_id, message.version
        last = max(self._steps.values(), default=WeightsVersion(0, 0))
        known = self._steps.setdefault(step_id, version)
        if known != version:
            self._broken(f"step {step_id} gave version {known} and then {version}: trained twice")
        if version.lineage == last.lineage and version.step > last.step + 1:
            self._broken(f"step {step_id} gave version {version} after {last}: trained twice")
        self._on_progress(event)

    def _on_restored(self, event: Event) -> None:
        """What the lost weights had learned did not happen; it is learned again, by weights of another lineage."""
        self._learned.clear()
        self._steps.clear()
        self._on_progress(event)

    def _on_open(self, event: Event) -> None:
        message = event.message
        assert isinstance(message, OpenGate)
        if message.version < self._version:
            self._broken(
                f"{event.source} opens the gate at {message.version} after {self._version}: a version goes back"
            )
        self._version = message.version

    def _on_granted(self, event: Event) -> None:
        message = event.message
        assert isinstance(message, LeaseGranted)
        if message.lease is not None and message.lease.rollout not in self._released:
            self._leases[message.lease.rollout] = message.lease.generator
        self._on_progress(event)

    def _on_released(self, event: Event) -> None:
        message = event.message
        assert isinstance(message, ReleaseLease)
        self._leases.pop(message.rollout, None)
        self._released[message.rollout] = None

    def _on_turn_asked(self, event: Event) -> None:
        message = event.message
        assert isinstance(message, SampleTurn)
        if message.lease.rollout in self._released:
            self._broken(f"{event.source} uses lease {message.lease.rollout}, which it has given back")

    def _on_sampled(self, event: Event) -> None:
        message = event.message
        assert isinstance(message, TurnSampled)
        self._on_progress(event)
        if message.finish in ("history_missing", "aborted"):
            return
        last = self._sampled_by.get(event.source, message.version)
        if message.version < last:
            self._broken(f"{event.source} samples with {message.version} after {last}: a version goes back")
        self._sampled_by[event.source] = message.version
        newest = self._published if self._max_staleness else self._version
        if not self._version <= message.version <= newest:
            self._broken(f"{event.source} samples with {message.version}, but the gate opened with {self._version}")
        generator = self._generator(self._refs[event.source])
        used, capacity = generator.engine.usage().kv_used_tokens, generator.kv_tokens()
        if not 0 <= used <= capacity:
            self._broken(f"{event.source} holds {used} tokens of KV and has {capacity}: over budget")

    def _on_progress(self, event: Event) -> None:
        self._progress_ns = event.now_ns

    # --- looks ------------------------------------------------------------------------------------

    def _look(self) -> None:
        """At even intervals: progress, and the balancer's books."""
        if self._ended:
            return
        self._stage.loop.call_later(LOOK_S, self._look)
        out = len(self._submitted) - len(self._finished)
        if out and self._stage.loop.now_ns() - self._progress_ns > HORIZON_S * NS:
            before, self._work_done = self._work_done, self._work()
            if self._work_done == before:
                self._broken(f"nothing has come of {out} rollouts for {HORIZON_S:g} s: a wake-up was lost")
            self._progress_ns = self._stage.loop.now_ns()  # some turns, and some steps of learners, take that long
        if not self._stage.runs(self._balancer):
            return
        status = self._books()
        for load in status.loads:
            if self._most_promised is None:
                break
            most = self._most_promised * load.capacity.kv_tokens
            if load.promised > most:
                self._broken(
                    f"{load.capacity.generator} has {load.promised} tokens promised, over its budget of {most:g}"
                )
        idle = [load.capacity.generator for load in status.loads if not load.sessions]
        idle = [name for name in idle if self._stage.runs(ActorRef(name))]
        quiet_s = (self._stage.loop.now_ns() - self._progress_ns) / NS
        if not out and quiet_s > LEAK_S and (held := sum(load.sessions for load in status.loads)):
            self._broken(f"{held} leases are out though all rollouts are through: a lease leaked")
        self._idle_looks = self._idle_looks + 1 if idle and status.waiting and status.gate_open else 0
        if self._idle_looks > 2:
            self._broken(f"{status.waiting} rollouts wait while {', '.join(idle[:3])} has none: work is not conserved")

    def _work(self) -> list[int]:
        """What engines and learner have done, which may take long over what they have."""
        engines = [self._generator(ref).engine.work_done() for ref in self._generators if self._stage.runs(ref)]
        if not self._stage.runs(self._learner):
            return engines
        learner = self._stage.actor(self._learner).port.thread_work()
        return [*engines, learner.jobs + learner.seconds]

    def _books(self) -> BalancerStatus:
        balancer = self._stage.actor(self._balancer)
        assert isinstance(balancer, BalancerActor)
        return balancer.status()

    def _generator(self, ref: ActorRef) -> GeneratorActor:
        generator = self._stage.actor(ref)
        assert isinstance(generator, GeneratorActor)
        return generator

    def _broken(self, what: str) -> None:
        raise Violation(f"at {self._stage.loop.time():.3f} s, event {self._stage.trace.events}: {what}")
