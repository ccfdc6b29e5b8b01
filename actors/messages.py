"""What actors say to one another. Importing this module makes every message decodable."""

from __future__ import annotations

from typing import ClassVar, Literal

from actors.system.message import Done, Message, Request
from env.tool_call import ToolCall, ToolResult
from policies.balancing import Capacity, Lease, Load, Wish
from policies.dialogue import DialogueLimits
from policies.options import ObjectiveOptions, OptimiserOptions
from policies.scripted import CountedTokens, ScriptedTurn
from policies.stages import EvaluationOptions, FineTuningOptions, ReinforcementOptions
from policies.trajectory import Problem, Trajectory, Verdict, WeightsVersion

# --- whoever is watched -------------------------------------------------------------------------


class Identity(Message, tag="watched.identity"):
    incarnation: int


class Identify(Request[Identity], tag="watched.identify"):
    lane: ClassVar[Literal["work", "control"]] = "control"


class AwaitEnd(Request[Done], tag="watched.await_end"):
    """Never answered: whoever asks hears of the actor's end, since the ask fails with it."""

    lane: ClassVar[Literal["work", "control"]] = "control"


# --- environments -------------------------------------------------------------------------------


class CallFinished(Message, tag="environment.finished"):
    result: ToolResult


class RunCall(Request[CallFinished], tag="environment.run"):
    """Run one tool call; asking again with the same call id gives the same result."""

    call: ToolCall
    trajectory: str
    """The rollout that makes the call (sessions and affinity go by it)."""


class AnswerVerified(Message, tag="environment.verified"):
    verdict: Verdict


class VerifyAnswer(Request[AnswerVerified], tag="environment.verify"):
    """Compare a final answer, already extracted, with the gold. Pure: asking again does no harm."""

    extracted: str
    gold: str


class CancelCalls(Message, tag="environment.cancel"):
    """Nobody wants these calls any more: end what runs, forget what waits. Calls that are over are left alone.

    It travels in the lane of `RunCall`, so that it can't overtake the call that it cancels, nor a later attempt of it.
    Whoever still asks for such a call is told `sandbox_failure`.
    """

    calls: tuple[str, ...]
    """Ids."""


class EnvironmentStatus(Message, tag="environment.status"):
    sandbox: str
    """What keeps calls away from the host, such as `nsjail`."""
    isolation: str
    """How calls are kept apart from each other."""
    weaknesses: tuple[str, ...]
    """What the host can't give, and what stands in for it; usually empty."""
    calls_run: int
    sandbox_failures: int
    """Of the calls, those that the sandbox failed even when they were tried again."""
    retried: int
    """Runs that were made because the sandbox had failed one before."""
    cancelled: int
    """Calls that nobody wanted any more; not counted in `calls_run`."""
    waiting: int
    running: int
    answers_compared: int
    """Answers that could not be judged at sight."""
    comparisons_timed_out: int


class DescribeEnvironment(Request[EnvironmentStatus], tag="environment.describe"):
    lane: ClassVar[Literal["work", "control"]] = "control"


# --- generators ---------------------------------------------------------------------------------


class TurnSampled(Message, tag="generator.sampled"):
    """One model turn, or the news that the generator lacks the history it was to continue."""

    ids: bytes = b""
    """int32 `[L]`."""
    logprobs: bytes = b""
    """float32 `[L]`."""
    finish: Literal["stop", "length", "history_missing", "aborted"]
    version: WeightsVersion
    turn: ScriptedTurn | None = None
    """In the simulator: what the model said, in place of ids and log-probabilities."""


class SampleTurn(Request[TurnSampled], tag="generator.sample"):
    """Continue a rollout by one model turn.

    `known` tokens are already at the generator; `ids` are those after them. A generator that does not hold just
    `known` tokens of this rollout answers `history_missing`, and the rollout sends everything with `known = 0`.
    """

    lease: Lease
    turn: int
    known: int
    ids: bytes
    """int32 `[L]`."""
    max_tokens: int
    temperature: float
    stop_ids: tuple[int, ...]
    """Token ids that end the turn (and are part of it)."""
    seed: int
    counted: CountedTokens | None = None
    """In the simulator: the whole history, whatever is known, in place of `ids`."""


class ForgetOwner(Request[Done], tag="generator.forget_owner"):
    """An incarnation of a rollout actor is gone: forget all of its rollouts."""

    lane: ClassVar[Literal["work", "control"]] = "control"
    owner: str
    """`NAME-INCARNATION`, as names of leases have it."""


class ForgetRollout(Request[Done], tag="generator.forget"):
    """The rollout is over: abort what runs for it and drop its history."""

    lane: ClassVar[Literal["work", "control"]] = "control"
    rollout: str


class GeneratorStatus(Message, tag="generator.status"):
    capacity: Capacity
    engine: str
    """Kind of engine, for the books: `vllm`, or the name of a simulated one."""
    running: int
    """Turns in the engine now."""
    kv_used_tokens: int
    turns_served: int
    generated_tokens: int
    busy_seconds: float
    """Seconds in which the engine had work."""
    kv_token_seconds: float
    """As in `EngineUsage`."""
    version: WeightsVersion


class DescribeGenerator(Request[GeneratorStatus], tag="generator.describe"):
    lane: ClassVar[Literal["work", "control"]] = "control"


class UpdateWeights(Request[Done], tag="generator.update"):
    """Replace the weights between two engine steps; turns in flight keep the tokens they have."""

    lane: ClassVar[Literal["work", "control"]] = "control"
    version: WeightsVersion
    blob: str
    """Key of a blob: a dict of parameter name to tensor, in Hugging Face naming."""


# --- balancer -----------------------------------------------------------------------------------


class LeaseGranted(Message, tag="balancer.granted"):
    lease: Lease | None
    """None if the wish was refused."""
    queued: bool = False
    """Whether the rollout had to wait."""
    refusal: str = ""


class AcquireLease(Request[LeaseGranted], tag="balancer.acquire"):
    wish: Wish


class ReleaseOwner(Request[Done], tag="balancer.release_owner"):
    """An incarnation of a rollout actor is gone: end all of its leases and wishes."""

    lane: ClassVar[Literal["work", "control"]] = "control"
    owner: str
    """`NAME-INCARNATION`, as names of leases have it."""


class ReleaseLease(Request[Done], tag="balancer.release"):
    lane: ClassVar[Literal["work", "control"]] = "control"
    rollout: str
    tokens: int | None = None
    """The length that the rollout came to; None if it did not come to its end."""


class TurnEnded(Message, tag="balancer.turn_ended"):
    """How long a rollout is after a model turn; said if its lease has `wants_progress`."""

    lane: ClassVar[Literal["work", "control"]] = "control"
    rollout: str
    tokens: int


class BeginTurn(Request[Done], tag="balancer.begin_turn"):
    """Answered when the turn may begin; asked before each turn after the first if the lease has a `turn_barrier`."""

    lane: ClassVar[Literal["work", "control"]] = "control"
    rollout: str
    turn: int


class JoinGenerator(Request[Done], tag="balancer.join"):
    """A generator is ready (or ready again, after a restart)."""

    lane: ClassVar[Literal["work", "control"]] = "control"
    capacity: Capacity


class LeaveGenerator(Request[Done], tag="balancer.leave"):
    """A generator died."""

    lane: ClassVar[Literal["work", "control"]] = "control"
    generator: str
    incarnation: int | None = None
    """The one that died: a later one stays. None: whichever there is."""


class CloseGate(Request[Done], tag="balancer.close_gate"):
    """Grant nothing more until `OpenGate`; answered when no lease is out (drained)."""

    lane: ClassVar[Literal["work", "control"]] = "control"


class OpenGate(Request[Done], tag="balancer.open_gate"):
    lane: ClassVar[Literal["work", "control"]] = "control"
    version: WeightsVersion


class BalancerStatus(Message, tag="balancer.status"):
    gate_open: bool
    loads: tuple[Load, ...]
    waiting: int
    granted_total: int
    queued_total: int
    """Of the leases granted, those that had to wait."""
    peak_leases: int
    """The most leases that were out at one time."""


class DescribeBalancer(Request[BalancerStatus], tag="balancer.describe"):
    lane: ClassVar[Literal["work", "control"]] = "control"


# --- rollouts -----------------------------------------------------------------------------------


class RolloutFinished(Message, tag="rollout.finished"):
    trajectory: Trajectory


class RunRollout(Request[RolloutFinished], tag="rollout.run"):
    """Play one dialogue to its end and store it; asking again while it is played gets the same answer."""

    id: str
    group: str
    sample: int
    stage: str
    step: int
    problem: Problem
    limits: DialogueLimits
    temperature: float


# --- learner ------------------------------------------------------------------------------------


class BeginStage(Request[Done], tag="learner.begin"):
    """Set the options of what follows; the optimiser starts afresh."""

    optimiser: OptimiserOptions
    objective: ObjectiveOptions
    total_steps: int
    temperature: float = 1.0
    """Sampling temperature of the rollouts: the learner divides its logits by it."""


class Learned(Message, tag="learner.learned"):
    """One optimiser step, done."""

    version: WeightsVersion
    metrics: dict[str, float]


class Learn(Request[Learned], tag="learner.learn"):
    """One optimiser step on a batch. Repeating a step id does not train twice."""

    step_id: str
    kind: Literal["fine_tune", "reinforce"]
    blob: str
    """Key of a blob: a tuple of `policies.batch.TrainingSequence`."""


class WeightsPublished(Message, tag="learner.published"):
    version: WeightsVersion
    blob: str


class PublishWeights(Request[WeightsPublished], tag="learner.publish"):
    """Put the current weights into the object store; the caller drops the blob when all engines have it."""


class SaveCheckpoint(Request[Done], tag="learner.save"):
    """Write the model in Hugging Face format, aside first, then renamed to `path`."""

    path: str


# --- archive ------------------------------------------------------------------------------------


class StoreTrajectory(Request[Done], tag="archive.store"):
    """Append a trajectory; answered once the operating system has it. Repeats are dropped."""

    trajectory: Trajectory


class ArchiveStatus(Message, tag="archive.status"):
    trajectories: int
    bytes_written: int


class DescribeArchive(Request[ArchiveStatus], tag="archive.describe"):
    """Bring the index up to date, and say what this writer stored."""


# --- director -----------------------------------------------------------------------------------


class Report(Message, tag="director.report"):
    """Figures of one step or evaluation, for metrics and displays."""

    kind: Literal["fine_tune", "step", "evaluation", "event"]
    stage: str
    step: int
    figures: dict[str, float]
    text: str = ""


class Reports(Message, tag="director.reports"):
    reports: tuple[Report, ...]
    next: int
    """What to ask for next."""


class NextReports(Request[Reports], tag="director.next_reports"):
    """Reports from number `after` on; waits for one, at most `patience_s`."""

    after: int
    patience_s: float = 5.0


class StageDone(Message, tag="director.stage_done"):
    """A stage came to its end; `figures` sum it up."""

    figures: dict[str, float]


class RunFineTuning(Request[StageDone], tag="director.fine_tune"):
    name: str
    options: FineTuningOptions
    limits: DialogueLimits


class RunReinforcement(Request[StageDone], tag="director.reinforce"):
    name: str
    options: ReinforcementOptions
    limits: DialogueLimits


class RunEvaluation(Request[StageDone], tag="director.evaluate"):
    name: str
    """The state that is evaluated: the stage that has just ended."""
    options: EvaluationOptions
    limits: DialogueLimits


class SyncWeights(Request[Done], tag="director.sync"):
    """Bring the learner's weights to every generator."""
