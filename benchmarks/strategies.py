"""Strategies against each other, a lower bound and a clairvoyant, without actors: pure schedulers on a pure event loop.

    python -m benchmarks.strategies                                # stages 1, 2, 3 x three KV sizes, 3 seeds
    python -m benchmarks.strategies --engines 8 --stages 1 --kv tight --strategies predictive,worst_case
    python -m benchmarks.strategies --warm 1                       # strategies that have seen a step before

Each engine is a `ContinuousBatching` with a `StepCost`, so this shows what strategies do to engines, and nothing else:
messages, environments that are short of workers, and faults are `greenroom simulate`'s business. The coefficients are
assumptions until they are calibrated; ratios mean more than seconds.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import sys
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from benchmarks.oracle import Oracle
from policies.balancing import BalancerOptions, Capacity, Strategy, Wish
from policies.balancing_strategies import make_strategy
from policies.batching_records import BatchingLimits, Turn
from policies.continuous_batching import ContinuousBatching
from policies.scripted import Rollout
from policies.step_cost import StepCost, StepWork
from policies.workloads import PROFILES, Workload

KV_TOKENS = {"tight": 210_000, "middling": 400_000, "loose": 750_000}
"""Per engine; the sizes of the study in the scheduling literature that these are to be compared with."""
GROUP, PER_ENGINE, MAX_RUNNING = 32, 256, 512
CALL_OVERHEAD_S, CALL_LIMIT_S = 0.2, 4.0
STRATEGIES = ("static", "static_async", "round_robin", "worst_case", "oversubscribed", "predictive", "oracle")


@dataclass(slots=True)
class Figures:
    """What came of one step's rollouts."""

    makespan_s: float
    preemptions: int
    recomputed_tokens: int
    generated_tokens: int
    idle_share: float
    kv_mean: float


@dataclass(slots=True)
class _Engine:
    core: ContinuousBatching
    began: float = 0.0
    work: StepWork | None = None
    steps: int = 0
    alarm: int = 0
    """Number of the event that ends the work; earlier ones are void."""
    arriving: list[Turn] = field(default_factory=list)
    busy_s: float = 0.0
    kv_token_s: float = 0.0


class Simulation:
    """One step of a workload on `engines` equal engines."""

    def __init__(
        self,
        strategy: Strategy,
        rollouts: dict[str, Rollout],
        longest: int,
        engines: int,
        limits: BatchingLimits,
        cost: StepCost,
        before: float = 0.0,
    ) -> None:
        self._strategy, self._rollouts, self._longest, self._cost = strategy, rollouts, longest, cost
        self._engines = {f"g{index:03}": _Engine(ContinuousBatching(limits)) for index in range(engines)}
        self._limits = limits
        self._events: list[tuple[float, int, str, str]] = []
        self._numbers = 0
        self._barrier = False
        self._before, self._now = before, 0.0
        self._placed: dict[str, str] = {}
        self._turn: dict[str, int] = {}
        self._length: dict[str, int] = {}

    def run(self) -> Figures:
        known = {load.capacity.generator for load in self._strategy.loads()}
        for name in sorted(self._engines.keys() - known):
            self._strategy.generator_joined(
                Capacity(
                    generator=name,
                    incarnation=0,
                    kv_tokens=self._limits.kv_blocks * self._limits.block_tokens,
                    block_tokens=self._limits.block_tokens,
                    max_sequence_tokens=self._longest,
                )
            )
        for name, rollout in self._rollouts.items():
            group = name.rpartition("/")[0]
            self._strategy.wish(
                Wish(rollout=name, prompt_tokens=rollout.prompt_tokens, max_tokens=self._longest, group=group)
            )
        self._go_on()
        while self._events:
            self._now, number, kind, name = heapq.heappop(self._events)
            self._strategy.time_is(self._before + self._now)
            if kind == "engine":
                self._engine_rings(self._engines[name], number, name)
            else:
                self._tool_returns(name)
        assert not self._placed, "rollouts were left behind"
        return self._figures()

    def _at(self, when: float, kind: str, name: str) -> int:
        self._numbers += 1
        heapq.heappush(self._events, (when, self._numbers, kind, name))
        return self._numbers

    def _go_on(self) -> None:
        for lease in self._strategy.grants():
            self._placed[lease.rollout] = lease.generator
            self._turn[lease.rollout] = 0
            self._length[lease.rollout] = self._rollouts[lease.rollout].prompt_tokens
            self._barrier = lease.turn_barrier
            self._send(lease.rollout)
        for rollout in self._strategy.turns():
            self._send(rollout)

    def _send(self, rollout: str) -> None:
        name = self._placed[rollout]
        engine, script, length = self._engines[name], self._rollouts[rollout], self._length[rollout]
        engine.arriving.append(
            Turn(
                id=rollout,
                prompt=rollout.rpartition("/")[0],
                prompt_tokens=script.prompt_tokens,
                sequence=rollout,
                length=length,
                new_tokens=min(script.turns[self._turn[rollout]].n_tokens, self._longest - length),
            )
        )
        if engine.work is None:
            self._begin(engine, name)
        elif not engine.core.waiting:
            steps = self._cost.steps_begun_by(engine.work, self._now - engine.began)
            if steps < engine.steps:
                self._set_alarm(engine, name, steps)

    def _begin(self, engine: _Engine, name: str) -> None:
        for turn in engine.arriving:
            engine.core.add(turn)
        engine.arriving.clear()
        engine.work = engine.core.begin()
        if engine.work is not None:
            engine.began = self._now
            self._set_alarm(engine, name, engine.work.steps)

    def _set_alarm(self, engine: _Engine, name: str, steps: int) -> None:
        assert engine.work is not None
        engine.steps = steps
        engine.alarm = self._at(engine.began + self._cost.seconds(engine.work, steps), "engine", name)

    def _engine_rings(self, engine: _Engine, number: int, name: str) -> None:
        if number != engine.alarm:
            return
        before = engine.core.used_blocks
        sampled = engine.core.end(engine.steps)
        seconds = self._now - engine.began
        engine.busy_s += seconds
        engine.kv_token_s += (before + engine.core.peak_blocks) / 2 * self._limits.block_tokens * seconds
        engine.work = None
        for done in sampled:
            self._turn_ends(done.id, done.tokens)
        self._go_on()
        if engine.work is None:
            self._begin(engine, name)

    def _turn_ends(self, rollout: str, tokens: int) -> None:
        script = self._rollouts[rollout].turns[self._turn[rollout]]
        self._length[rollout] += tokens
        length = self._length[rollout]
        self._strategy.progressed(rollout, length)
        response = sum(call.response_tokens for call in script.calls)
        if not script.calls or tokens < script.n_tokens or length + response >= self._longest:
            del self._placed[rollout]
            self._strategy.release(rollout, length)
            return
        seconds = max(min(call.run_seconds, CALL_LIMIT_S) for call in script.calls)
        self._at(self._now + CALL_OVERHEAD_S + seconds, "tool", rollout)

    def _tool_returns(self, rollout: str) -> None:
        script = self._rollouts[rollout].turns[self._turn[rollout]]
        self._length[rollout] += sum(call.response_tokens for call in script.calls)
        self._turn[rollout] += 1
        if self._barrier:
            self._strategy.turn_wish(rollout)
        else:
            self._send(rollout)
        self._go_on()

    def _figures(self) -> Figures:
        counts = [engine.core.counts for engine in self._engines.values()]
        span = self._now * len(self._engines)
        capacity = self._limits.kv_blocks * self._limits.block_tokens
        return Figures(
            makespan_s=self._now,
            preemptions=sum(each.preemptions for each in counts),
            recomputed_tokens=sum(each.recomputed_tokens for each in counts),
            generated_tokens=sum(each.generated_tokens for each in counts),
            idle_share=1 - sum(engine.busy_s for engine in self._engines.values()) / span,
            kv_mean=sum(engine.kv_token_s for engine in self._engines.values()) / span / capacity,
        )


def lower_bound(rollouts: list[Rollout], longest: int, engines: int, limits: BatchingLimits, cost: StepCost) -> float:
    """Seconds that no schedule can beat: all engines full of KV all the time, or the longest rollout alone."""
    kv_tokens = limits.kv_blocks * limits.block_tokens
    work = alone = tokens = kv_steps = steps = 0.0
    for rollout in rollouts:
        prompt, length = rollout.prompt_tokens, min(rollout.tokens, longest)
        model = sum(turn.n_tokens for turn in rollout.turns) * (length - prompt) / max(1, rollout.tokens - prompt)
        calls = [call for turn in rollout.turns for call in turn.calls] if length == rollout.tokens else []
        tools = sum(CALL_OVERHEAD_S + min(call.run_seconds, CALL_LIMIT_S) for call in calls)
        context = model * (prompt + length) / 2
        work += cost.sequence * model + cost.context_token * context
        alone = max(alone, model * (cost.base + cost.sequence) + cost.context_token * context + tools)
        tokens, kv_steps, steps = tokens + length, kv_steps + context, steps + model
    batch = min(kv_tokens / (kv_steps / steps), limits.max_running)
    return max((cost.base * steps / batch + work) / engines, alone)


def compare(
    stage: int, kv: str, seed: int, engines: int, strategies: list[str], settings: dict[str, Any], warm: int
) -> tuple[float, dict[str, Figures]]:
    """The lower bound in seconds, and the figures of every strategy, on one workload."""
    profile, cost = PROFILES[f"rstar2-stage-{stage}"], StepCost()
    workload = Workload(seed=seed, stages={"rl": profile})
    count, longest = engines * PER_ENGINE, profile.longest

    def step(number: int) -> dict[str, Rollout]:
        names = [f"rl/{number}/{index // GROUP}/{index % GROUP}" for index in range(count)]
        return {name: workload.rollout(name) for name in names}

    rollouts = step(warm)
    lengths = {name: min(rollout.tokens, longest) for name, rollout in rollouts.items()}
    limits = BatchingLimits(
        kv_blocks=KV_TOKENS[kv] // 16, block_tokens=16, max_running=MAX_RUNNING, max_step_tokens=8192
    )
    bound = lower_bound(list(rollouts.values()), longest, engines, limits, cost)
    found: dict[str, Figures] = {}
    for strategy in strategies:
        before = 0.0
        if strategy == "oracle":
            made: Strategy = Oracle(BalancerOptions(), lengths, longest)
        else:
            made = make_strategy(BalancerOptions.model_validate({"strategy": strategy, **settings}))
            for number in range(warm):
                before += Simulation(made, step(number), longest, engines, limits, cost, before).run().makespan_s
        found[strategy] = Simulation(made, rollouts, longest, engines, limits, cost, before).run()
    return bound, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", type=int, default=8)
    parser.add_argument("--stages", default="1,2,3")
    parser.add_argument("--kv", default="tight,middling,loose")
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--warm", type=int, default=0, help="Steps that the strategy has seen before the measured one.")
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="of the balancer")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    strategies = chosen.strategies.split(",")
    settings = {key: json.loads(value) for key, _, value in (each.partition("=") for each in chosen.set)}
    if not chosen.json:
        print(f"{'stage':>5} {'KV':>9} {'bound':>7} " + " ".join(f"{name:>15}" for name in strategies))
    for stage in map(int, chosen.stages.split(",")):
        for kv in chosen.kv.split(","):
            runs = [
                compare(stage, kv, seed, chosen.engines, strategies, settings, chosen.warm)
                for seed in range(chosen.seeds)
            ]
            bound = mean(each for each, _ in runs)
            spans = {name: mean(found[name].makespan_s for _, found in runs) for name in strategies}
            preempted = {name: mean(found[name].preemptions for _, found in runs) for name in strategies}
            if chosen.json:
                row = {"stage": stage, "kv": kv, "lower_bound_s": bound, "makespan_s": spans, "preemptions": preempted}
                print(json.dumps(row))
            else:
                cells = (f"{spans[n]:6.0f} {spans[n] / bound:4.2f} {_short(preempted[n])}" for n in strategies)
                print(f"{stage:>5} {kv:>9} {bound:7.0f} " + " ".join(cells))
            sys.stdout.flush()


def _short(count: float) -> str:
    return f"{count:3.0f}" if count < 1000 else f"{min(99, math.ceil(count / 1000)):2}K"


if __name__ == "__main__":
    main()
