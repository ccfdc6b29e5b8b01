"""What simulated models say: how long, in how many turns, with which calls, and whether they are right in the end.

Invariants:
- a script is a pure function of the workload, the seed and the rollout's id: whoever asks, and whenever, reads the
  same one; an attempt that starts again says the same things;
- a policy never sees a script: it is read by the simulated engine and by the dialogue, after the fact.

The profiles follow rStar2-Agent (arXiv 2508.20722): at most 8K, 12K and 12K tokens, 4K, 6K and 8K on average at the end
of stages 1, 2 and 3, 10, 10 and 15 turns, about 10% of rollouts cut off, 45,000 calls for 16,384 rollouts. How lengths
spread between problems and within a group, and how they go with the number of calls, the paper does not say: those
figures are estimates.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import cached_property, lru_cache
from random import Random
from statistics import NormalDist
from typing import Annotated, Literal, NamedTuple, get_args

from pydantic import Field, model_validator

from env.tool_call import Limits, ToolCall
from policies.dialogue import Dialogue, DialogueLimits, Turn
from policies.options import Options
from policies.scripted import CountedTokens, Rollout, Script, ScriptedCall, ScriptedTurn
from policies.tokens import PackedIds
from policies.tool_calls import RequestedCall
from policies.trajectory import CallRecord, Problem, Verdict, VersionRun, WeightsVersion

_NORMAL = NormalDist()


class WorkloadOptions(Options):
    """Distributions of one stage's rollouts."""

    prompt_tokens: Annotated[int, Field(ge=1)] = 300
    """Mean tokens of a prompt, instructions included; prompts spread evenly from half to one and a half of it."""
    longest: Annotated[int, Field(ge=2)] = 8192
    """Tokens of a whole sequence at which `cut` of the rollouts would be cut off."""
    response_tokens: Annotated[float, Field(gt=0)] = 4000.0
    """Mean tokens after the prompt, those that are cut off counted as they end."""
    cut: Annotated[float, Field(gt=0, lt=0.5)] = 0.1
    """Share of rollouts that want more than `longest`."""
    alike: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Share of the variance of (log) lengths that lies between problems; the rest lies within groups."""
    calls: Annotated[float, Field(ge=0)] = 2.75
    """Mean tool calls of a rollout; longer rollouts make more."""
    turns: Annotated[int, Field(ge=1)] = 10
    """Most model turns."""
    tool_tokens: Annotated[float, Field(ge=1)] = 120.0
    """Mean tokens that the model reads of one call."""
    call_seconds: Annotated[float, Field(gt=0)] = 0.1
    """Mean seconds that an interpreter takes for a call, waiting not counted."""
    call_spread: Annotated[float, Field(ge=0)] = 1.0
    """Standard deviation of the logarithm of these seconds."""
    call_errors: Annotated[float, Field(ge=0, le=1)] = 0.12
    """Share of calls whose program fails."""
    call_timeouts: Annotated[float, Field(ge=0, le=1)] = 0.005
    """Share of calls that run into their time limit."""
    correct: Annotated[float, Field(ge=0, le=1)] = 0.6
    """Share of finished rollouts that are right; problems differ in it."""

    @model_validator(mode="after")
    def _mean_is_possible(self) -> WorkloadOptions:
        room = self.longest - self.prompt_tokens
        if not 0 < self.response_tokens < room:
            raise ValueError(
                f"response_tokens={self.response_tokens:g} must be above 0 and below longest - prompt_tokens = {room}"
            )
        return self

    @classmethod
    def scaled(cls, longest: int, turns: int) -> WorkloadOptions:
        """A workload in the paper's proportions for sequences of at most `longest` tokens."""
        prompt = max(1, longest // 27)
        return cls(
            prompt_tokens=prompt,
            longest=longest,
            response_tokens=(longest - prompt) / 2,
            turns=turns,
            tool_tokens=max(1.0, longest / 70),
        )

    @cached_property
    def length(self) -> tuple[float, float]:
        """Mean and standard deviation of the logarithm of response lengths, before they are cut off.

        Found so that a share `cut` exceeds the room and the mean, cut off there, is `response_tokens`.
        """
        room, z = float(self.longest - self.prompt_tokens), _NORMAL.inv_cdf(1 - self.cut)
        low, high = 1e-3, 5.0
        for _ in range(60):
            sigma = (low + high) / 2
            if _mean_cut_off(math.log(room) - sigma * z, sigma, room) > self.response_tokens:
                low = sigma
            else:
                high = sigma
        return math.log(room) - low * z, low


def _mean_cut_off(mu: float, sigma: float, room: float) -> float:
    """E[min(X, room)] of a log-normal X."""
    z = (math.log(room) - mu) / sigma
    return math.exp(mu + sigma * sigma / 2) * _NORMAL.cdf(z - sigma) + room * (1 - _NORMAL.cdf(z))


ProfileName = Literal["rstar2-stage-1", "rstar2-stage-2", "rstar2-stage-3"]

PROFILES: dict[str, WorkloadOptions] = {
    "rstar2-stage-1": WorkloadOptions(longest=8192, response_tokens=4000, cut=0.1, turns=10),
    "rstar2-stage-2": WorkloadOptions(longest=12288, response_tokens=6000, cut=0.1, turns=10),
    "rstar2-stage-3": WorkloadOptions(longest=12288, response_tokens=8000, cut=0.15, turns=15),
}
"""The stages of the paper, as they are at their ends."""

assert PROFILES.keys() == set(get_args(ProfileName)), "ProfileName and PROFILES must name the same workloads"


class Workload(Options, Script):
    """The scripts of a run: what each stage's rollouts are like, by the stage's name."""

    seed: int
    stages: dict[str, WorkloadOptions]

    def rollout(self, sequence: str) -> Rollout:
        """See `Script.rollout`."""
        stage, _, _ = sequence.partition("/")
        return _rollout(self._texts[stage], self.seed, sequence)

    @cached_property
    def _texts(self) -> dict[str, str]:
        return {name: options.model_dump_json() for name, options in self.stages.items()}


def stream(seed: int, name: str) -> Random:
    """A random stream of its own for each name."""
    return Random(int.from_bytes(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest(), "little"))


@lru_cache(maxsize=64)
def _options(text: str) -> WorkloadOptions:
    return WorkloadOptions.model_validate_json(text)


@lru_cache(maxsize=1 << 17)
def _rollout(text: str, seed: int, sequence: str) -> Rollout:
    """Kept for all actors of a simulation together: whoever computes it gets the same."""
    options = _options(text)
    group, _, _ = sequence.rpartition("/")
    problem = _problem(text, seed, group)
    rng = stream(seed, f"script/{sequence}")
    mu, sigma = options.length
    spread = math.sqrt(options.alike) * problem.difficulty + math.sqrt(1 - options.alike) * rng.gauss(0.0, 1.0)
    total = math.exp(mu + sigma * spread)
    wanted = options.calls * math.sqrt(total / options.response_tokens)
    calls = [_call(options, rng) for _ in range(min(_poisson(wanted, rng), options.turns - 1))]
    said = max(total - sum(call.response_tokens for call in calls), 8.0 * (len(calls) + 1))
    parts = [0.25 + rng.expovariate(1.0) for _ in range(len(calls) + 1)]
    sizes = [max(1, round(part * said / sum(parts))) for part in parts]
    turns = [ScriptedTurn(size, (call,)) for size, call in zip(sizes, calls, strict=False)]
    turns.append(ScriptedTurn(sizes[-1], (), rng.random() < problem.ability))
    return Rollout(problem.prompt_tokens, tuple(turns))


def _call(options: WorkloadOptions, rng: Random) -> ScriptedCall:
    seconds = rng.lognormvariate(math.log(options.call_seconds) - options.call_spread**2 / 2, options.call_spread)
    tokens = max(1, round(rng.expovariate(1 / options.tool_tokens)))
    luck = rng.random()
    if luck < options.call_errors:
        return ScriptedCall(seconds, "error", tokens)
    if luck < options.call_errors + options.call_timeouts:
        return ScriptedCall(math.inf, "timeout", tokens)
    return ScriptedCall(seconds, "success", tokens)


class _Problem(NamedTuple):
    """What the rollouts of a group share."""

    difficulty: float
    """In standard deviations of the logarithm of lengths."""
    prompt_tokens: int
    ability: float
    """Chance to be right."""


@lru_cache(maxsize=1 << 14)
def _problem(text: str, seed: int, group: str) -> _Problem:
    options = _options(text)
    rng = stream(seed, f"problem/{group}")
    difficulty = rng.gauss(0.0, 1.0)
    prompt = max(1, round(options.prompt_tokens * rng.uniform(0.5, 1.5)))
    if options.correct in (0, 1):
        return _Problem(difficulty, prompt, options.correct)
    return _Problem(difficulty, prompt, rng.betavariate(2 * options.correct, 2 * (1 - options.correct)))


def _poisson(mean: float, rng: Random) -> int:
    """Knuth's method: means here are small."""
    limit, count, product = math.exp(-mean), 0, rng.random()
    while product > limit:
        count += 1
        product *= rng.random()
    return count


class ScriptedDialogue(Dialogue):
    """A dialogue that reads scripts instead of text; its rules are those of every dialogue."""

    def __init__(self, *, id: str, group: str, workload: Script, problem: Problem, limits: DialogueLimits) -> None:
        prompt = workload.rollout(id).prompt_tokens
        self._counted = CountedTokens(group, prompt, id, turns=0, length=prompt)
        self._said = ScriptedTurn(0)
        self._ended = False
        self._open(id, problem, limits, self._counted)

    def counted(self) -> CountedTokens:
        """The whole history."""
        return self._counted

    def said(
        self, turn: ScriptedTurn, ended: bool, version: WeightsVersion, earlier: Sequence[VersionRun] = ()
    ) -> None:
        """Take in a model turn; `ended` as the engine says, which may have cut it."""
        self._said, self._ended = turn, ended
        self.sampled(self._grow(turn.n_tokens, turns=1), b"", version, earlier)

    def _grow(self, count: int, turns: int = 0) -> CountedTokens:
        """Add tokens to the history; returns them alone."""
        before, self._counted = self._counted.length, self._counted.grown(count, turns)
        return self._counted.without(before)

    def _read(self, ids: PackedIds) -> Turn:
        return read_scripted(self._said, self._ended, f"{self.id}/{self.turns - 1}", self._limits.call)

    def _respond(self, records: Sequence[CallRecord]) -> PackedIds:
        return self._grow(sum(call.response_tokens for call in self._said.calls))

    def _judge(self) -> Verdict:
        return verdict_of(self._said)


def read_scripted(said: ScriptedTurn, ended: bool, prefix: str, limits: Limits) -> Turn:
    """What a dialogue reads of a scripted turn; its calls are `prefix/0`, `prefix/1`, ..."""
    calls = []
    for index, scripted in enumerate(said.calls):
        call = ToolCall(id=f"{prefix}/{index}", code="", limits=limits)
        refusal = "malformed, says the script" if scripted.status == "invalid_call" else ""
        calls.append(RequestedCall(call=call, refusal=refusal))
    return Turn(ended=ended, calls=calls, answer_tags=int(ended and not calls))


def verdict_of(said: ScriptedTurn) -> Verdict:
    """Whether the answer of a scripted turn is right."""
    return Verdict(correct=said.correct, reason="right" if said.correct else "wrong")
