"""`greenroom calibrate`: measures a real engine and fits the simulated engine's cost model to it.

Each measurement is a set of requests that enter the idle engine together and run to their ends. Which steps that takes
is known without looking into the engine: `policies.continuous_batching` schedules as vLLM does. So a measurement is
one time and the work of its steps, and the model is fitted to many of them: batch size, resident KV, prompt length and
context are varied. A second set, mixtures that the fit never sees, says how far its predictions can be trusted.

Invariants:
- what the engine says it generated is what the schedule of its steps says: else the work does not belong to the time;
- nothing is preempted and nothing found in the prefix cache while measuring: each prompt is new.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from pydantic import BaseModel

from actors.engines.engine import EngineCapacity, SampleRequest
from actors.engines.simulated_engine import SimulatedOptions
from actors.engines.vllm_engine import VllmEngine
from actors.engines.vllm_options import VllmOptions
from orchestration.hosted_engine import hosted_engine
from policies.batching_records import BatchingLimits, Turn
from policies.continuous_batching import ContinuousBatching
from policies.cost_fitting import FitError, fit_error, fit_step_cost
from policies.step_cost import StepCost, StepWork

DECODED = 32
"""Tokens that each sequence of a decoding measurement generates."""
MIXTURES = 8
"""Measurements that the fit does not see."""


class Experiment(BaseModel):
    """Requests that enter the engine together."""

    requests: tuple[tuple[int, int], ...]
    """Prompt tokens and new tokens of each."""


class Measurement(BaseModel):
    """An experiment and what it took."""

    experiment: Experiment
    seconds: float
    """Median over the repeats."""
    predicted_seconds: float
    fitted: bool
    """Whether the fit saw it."""


class Calibration(BaseModel):
    """A cost model, and how good it is. What `greenroom simulate` reads."""

    engine: str
    """Kind of engine that was measured."""
    model: str
    dtype: str
    threads: int
    limits: BatchingLimits
    max_sequence_tokens: int
    cost: StepCost
    fit: FitError
    """On the measurements that the model was fitted to."""
    held_out: FitError
    """On the mixtures that it was not fitted to."""
    repeat_spread: float
    """Median over measurements of (slowest - fastest) / median of its repeats: no model can be nearer than that."""
    repeats: int
    measurements: tuple[Measurement, ...]

    def options(self) -> SimulatedOptions:
        """The simulated engine that stands in for the measured one."""
        return SimulatedOptions(limits=self.limits, max_sequence_tokens=self.max_sequence_tokens, cost=self.cost)


def load_calibration(path: Path) -> Calibration:
    """Raises `OSError` and pydantic's `ValidationError` (a `ValueError`)."""
    return Calibration.model_validate_json(path.read_text())


def plan(limits: BatchingLimits, max_sequence_tokens: int) -> list[Experiment]:
    """What is measured for the fit: prompts of several lengths alone and together, and decoding at several batch sizes
    after short and long prompts. Nothing that would not fit the KV cache."""
    longest, kv_tokens = max_sequence_tokens, limits.kv_blocks * limits.block_tokens
    shapes: list[tuple[int, int, int]] = []
    for share in (0.05, 0.2, 0.45, 0.9):
        prompt = max(1, round(share * longest) - 1)
        shapes += [(count, prompt, 1) for count in (1, 3, 8)]
        count = 1
        while count <= limits.max_running:
            shapes.append((count, prompt, min(DECODED, longest - prompt)))
            count *= 4
    return [
        Experiment(requests=((prompt, new),) * count)
        for count, prompt, new in shapes
        if count * _blocks(prompt + new, limits) * limits.block_tokens <= kv_tokens
    ]


def mixtures(limits: BatchingLimits, max_sequence_tokens: int, rng: random.Random) -> list[Experiment]:
    """Random sets of requests that fit the KV cache."""
    made = []
    for _ in range(MIXTURES):
        requests, blocks = [], 0
        for _ in range(rng.randint(1, limits.max_running)):
            prompt = rng.randint(1, round(0.8 * max_sequence_tokens))
            new = rng.randint(1, min(2 * DECODED, max_sequence_tokens - prompt))
            blocks += _blocks(prompt + new, limits)
            if blocks > limits.kv_blocks:
                break
            requests.append((prompt, new))
        made.append(Experiment(requests=tuple(requests) or ((1, 1),)))
    return made


def work_of(experiment: Experiment, limits: BatchingLimits) -> list[StepWork]:
    """The steps that the experiment takes."""
    core, work = ContinuousBatching(limits), []
    for index, (prompt, new) in enumerate(experiment.requests):
        core.add(Turn(id=str(index), prompt=index, prompt_tokens=prompt, sequence=index, length=prompt, new_tokens=new))
    while (stretch := core.begin()) is not None:
        core.end(stretch.steps)
        work.append(stretch)
    assert not core.counts.preemptions, "an experiment has to fit"
    return work


def _blocks(tokens: int, limits: BatchingLimits) -> int:
    return -(-tokens // limits.block_tokens)


@dataclass(slots=True)
class _Bench:
    """A started engine, and what it is asked to do."""

    engine: VllmEngine
    vocabulary: int
    rng: random.Random
    asked: int = 0

    async def measure(self, experiment: Experiment) -> float:
        """Busy seconds of the engine. Raises `EngineFailed`."""
        before = self.engine.usage()
        await self.engine.pause()
        sampling = [asyncio.ensure_future(self.engine.sample(self._request(*sizes))) for sizes in experiment.requests]
        await asyncio.sleep(0)  # all of them enter the engine's queue before its next step
        await self.engine.resume()
        await asyncio.gather(*sampling)
        after = self.engine.usage()
        generated = sum(new for _, new in experiment.requests)
        assert after.generated_tokens - before.generated_tokens == generated, "the engine generated something else"
        return after.busy_seconds - before.busy_seconds

    def _request(self, prompt: int, new: int) -> SampleRequest:
        self.asked += 1
        return SampleRequest(
            id=f"calibrate-{self.asked}",
            ids=[self.rng.randrange(self.vocabulary) for _ in range(prompt)],
            max_tokens=new,
            temperature=1.0,
            stop_ids=(),
            seed=self.asked,
        )


async def calibrate(
    *,
    model: Path,
    options: VllmOptions,
    threads: int,
    repeats: int = 5,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> Calibration:
    """Measure vLLM on `model`, in this process, and fit a cost model.

    Args:
        threads: compute threads of the engine (CPU).
        repeats: how often everything is measured; medians count.
        say: told of progress.

    Raises `EngineFailed` if vLLM can't load or run the model.
    """
    from transformers import AutoConfig

    # Pacing makes steps wait for more requests: that is not what a step costs.
    unpaced = options.model_copy(update={"least_step_seconds": 0.0})
    async with hosted_engine(model, unpaced, threads=threads, seed=seed) as (engine, capacity):
        limits = _limits(options, capacity)
        bench = _Bench(engine, AutoConfig.from_pretrained(str(model)).vocab_size, random.Random(seed))
        for_fit = plan(limits, capacity.max_sequence_tokens)
        held_out = mixtures(limits, capacity.max_sequence_tokens, bench.rng)
        say(f"{limits.kv_blocks} KV blocks of {limits.block_tokens} tokens")
        say(f"{len(for_fit)} measurements for the fit, {len(held_out)} held out, {repeats} times each")
        times = await _measure_all(bench, [*for_fit, *held_out], repeats, say)
    return _calibration(str(model), options, threads, capacity, limits, for_fit, held_out, times)


def _limits(options: VllmOptions, capacity: EngineCapacity) -> BatchingLimits:
    return BatchingLimits(
        kv_blocks=capacity.kv_blocks,
        block_tokens=capacity.block_tokens,
        max_running=options.max_running,
        max_step_tokens=capacity.max_step_tokens,
        prefix_caching=options.prefix_caching,
    )


async def _measure_all(
    bench: _Bench, experiments: Sequence[Experiment], repeats: int, say: Callable[[str], None]
) -> list[list[float]]:
    """`[experiment][repeat]` seconds. Each round goes through all in another order: a slow minute hits no one alone."""
    await bench.measure(experiments[0])  # what happens only once (allocations, compilation) is nobody's cost
    times: list[list[float]] = [[] for _ in experiments]
    for repeat in range(repeats):
        order = list(range(len(experiments)))
        bench.rng.shuffle(order)
        for index in order:
            times[index].append(await bench.measure(experiments[index]))
        say(f"round {repeat + 1} of {repeats}: {sum(each[-1] for each in times):.1f} s of engine time")
    return times


def _calibration(
    model: str,
    options: VllmOptions,
    threads: int,
    capacity: EngineCapacity,
    limits: BatchingLimits,
    for_fit: list[Experiment],
    held_out: list[Experiment],
    times: list[list[float]],
) -> Calibration:
    seconds = [median(each) for each in times]
    spread = median((max(each) - min(each)) / median(each) for each in times)
    experiments = [*for_fit, *held_out]
    works, seen = [work_of(experiment, limits) for experiment in experiments], len(for_fit)
    cost = fit_step_cost(works[:seen], seconds[:seen])
    return Calibration(
        engine=VllmEngine.kind,
        model=model,
        dtype=options.dtype,
        threads=threads,
        limits=limits,
        max_sequence_tokens=capacity.max_sequence_tokens,
        cost=cost,
        fit=fit_error(cost, works[:seen], seconds[:seen]),
        held_out=fit_error(cost, works[seen:], seconds[seen:]),
        repeat_spread=spread,
        repeats=len(times[0]),
        measurements=tuple(
            Measurement(
                experiment=experiment,
                seconds=time,
                predicted_seconds=sum(cost.seconds(each) for each in work),
                fitted=index < seen,
            )
            for index, (experiment, work, time) in enumerate(zip(experiments, works, seconds, strict=True))
        ),
    )
