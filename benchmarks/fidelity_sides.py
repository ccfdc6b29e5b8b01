"""Both sides of `benchmarks.fidelity`: a workload on real engines, the same in simulation, how far they are apart."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from actors.archive import ArchiveActor
from actors.balancer import BalancerActor
from actors.engines.simulated_engine import SimulatedOptions
from actors.engines.vllm_options import VllmOptions
from actors.environment import EnvironmentActor
from actors.generator import GeneratorActor
from actors.messages import DescribeGenerator, GeneratorStatus, JoinGenerator
from actors.rollout import RolloutActor
from actors.sampling import Sampler
from actors.system.actor import ActorRef
from actors.system.ray_stage import RayStage
from actors.system.stage import Part, Stage
from actors.system.virtual_loop import run_virtual
from actors.system.virtual_stage import Network, VirtualStage
from actors.tokenizer import PromptOptions
from benchmarks.fidelity import CALIBRATION, ENGINES
from benchmarks.forced_rollouts import ForcedRolloutActor, PinnedGeneratorActor, RepeatedWorkload, pin
from orchestration.calibrate import Calibration, calibrate
from orchestration.cast import OFFLINE
from orchestration.engine_environment import QUIET_ENGINE, host_engine_here
from orchestration.recipe import ModelSettings, ScratchModel
from orchestration.scratch_folder import scratch_folder
from orchestration.tiny_model import write_scratch_model
from policies.balancing import BalancerOptions
from policies.dialogue import DialogueLimits
from policies.step_cost import StepCost
from policies.trajectory import Problem
from policies.workloads import Workload, WorkloadOptions

LONGEST = 512
MODEL = ScratchModel(hidden=384, layers=6, heads=6, kv_heads=6, intermediate=1152, max_tokens=LONGEST)
ENGINE = VllmOptions(dtype="float32", max_sequence_tokens=LONGEST, max_running=32, kv_tokens=2560)
"""KV for five rollouts of the greatest length on each engine."""
WORKLOADS = {
    CALIBRATION: WorkloadOptions(
        prompt_tokens=50, longest=LONGEST, response_tokens=160, cut=0.04, turns=4, calls=2, tool_tokens=10,
        call_seconds=0.15,
    ),
    "long": WorkloadOptions(
        prompt_tokens=40, longest=LONGEST, response_tokens=180, cut=0.06, turns=5, tool_tokens=12, call_seconds=0.2
    ),
    "short": WorkloadOptions(
        prompt_tokens=60, longest=LONGEST, response_tokens=110, cut=0.02, turns=8, calls=4, tool_tokens=8,
        call_seconds=0.1, alike=0.7,
    ),
}  # fmt: skip
GROUPS = {CALIBRATION: 4, "long": 4, "short": 6}
SAMPLES = 8
STRATEGIES = ("static", "worst_case", "round_robin", "predictive")
CALIBRATION_ROUNDS = 2
PROBE_S = 0.1
"""Between two messages that are timed."""
LIMITS = DialogueLimits(max_tokens=LONGEST, max_turns=8, max_turn_tokens=LONGEST)
ALLOWED = 0.10
"""Relative error of a predicted makespan; more is allowed if repeats of the real one differ by more than half of it."""


# --- what is run, on either stage ------------------------------------------------------------------


SCRIPT = RepeatedWorkload(Workload(seed=1, stages=WORKLOADS))


def parts(name: str, folder: str, rollouts: tuple[type[RolloutActor], dict[str, Any]]) -> list[Part]:
    """All actors but the generators: a balancer and a rollout actor for each strategy, which share the engines."""
    actor, arguments = rollouts
    made = [
        Part(name="archive", actor=ArchiveActor, arguments={"folder": folder}),
        Part(name="environment", actor=EnvironmentActor, arguments={"workload": SCRIPT, "workers": 64}),
    ]
    for strategy in STRATEGIES:
        options = BalancerOptions(strategy=strategy, batch=GROUPS[name] * SAMPLES // ENGINES)
        made.append(Part(name=f"balancer-{strategy}", actor=BalancerActor, arguments={"options": options}))
        made.append(
            Part(
                name=f"rollout-{strategy}",
                actor=actor,
                arguments={
                    "prompt": PromptOptions(),
                    "run_seed": 0,
                    "balancer": ActorRef(f"balancer-{strategy}"),
                    "environments": [ActorRef("environment")],
                    "archive": ActorRef("archive"),
                    "workload": SCRIPT,
                    **arguments,
                },
                environment=OFFLINE,
            )
        )
    return made


async def play(
    stage: Stage,
    name: str,
    made: Sequence[Part],
    generators: Sequence[Part],
    rounds: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Seconds `[round]` of the calibration workload and of each strategy, mean seconds of a message while the former
    was played, and the engines' KV tokens."""
    await stage.spawn(*made)
    engines = await stage.spawn(*generators)
    for engine in engines:
        status: GeneratorStatus = await stage.port.ask(engine, DescribeGenerator(), 60)
        for strategy in STRATEGIES[1:]:  # to the first one's balancer they announce themselves
            await stage.port.ask(ActorRef(f"balancer-{strategy}"), JoinGenerator(capacity=status.capacity), 60)
    step = 0

    async def seconds_of(workload: str, strategy: str) -> float:
        nonlocal step
        step += 1  # prompts of their own for each repeat
        problems = [Problem(id=str(index), question="", gold="") for index in range(GROUPS[workload])]
        began = stage.port.clock.now_ns()
        sampled = await Sampler(stage.port, [ActorRef(f"rollout-{strategy}")]).sample(
            problems, SAMPLES, stage=workload, step=step, limits=LIMITS, temperature=1.0
        )
        assert not sampled.dropped, sampled.dropped
        seconds = (stage.port.clock.now_ns() - began) / 1e9
        say(f"{workload}, {strategy}: {seconds:.2f} s")
        return seconds

    round_trips: list[float] = []

    async def time_messages() -> None:
        while True:
            for engine in engines:
                began = stage.port.clock.now_ns()
                await stage.port.ask(engine, DescribeGenerator(), 60)
                round_trips.append((stage.port.clock.now_ns() - began) / 1e9)
            await stage.port.clock.sleep(PROBE_S)

    timing = asyncio.ensure_future(time_messages())
    calibration = [await seconds_of(CALIBRATION, STRATEGIES[-1]) for _ in range(CALIBRATION_ROUNDS + 1)]
    timing.cancel()
    seconds: dict[str, list[float]] = {strategy: [] for strategy in STRATEGIES}
    for _ in range(rounds):
        for strategy in STRATEGIES:
            seconds[strategy].append(await seconds_of(name, strategy))
    return {
        "calibration": calibration[1:],
        "message_s": sum(round_trips) / len(round_trips) / 2,
        "seconds": seconds,
        "kv_tokens": status.capacity.kv_tokens,
    }


# --- for real --------------------------------------------------------------------------------------


def model_in(folder: Path) -> Path:
    """The model, written at the first call."""
    model = folder / "model"
    if not (model / "config.json").exists():
        write_scratch_model(ModelSettings(scratch=MODEL), 0, model)
    return model


async def run_for_real(folder: Path, name: str, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    from transformers import AutoConfig

    model = model_in(folder)
    vocabulary = AutoConfig.from_pretrained(str(model)).vocab_size
    generators = [
        Part(
            name=f"generator-{core}",
            actor=PinnedGeneratorActor,
            arguments={
                "core": core, "model": str(model), "options": ENGINE, "balancer": ActorRef(f"balancer-{STRATEGIES[0]}")
            },
            environment=QUIET_ENGINE,
        )
        for core in range(ENGINES)
    ]  # fmt: skip
    with scratch_folder("greenroom-fidelity-") as archive:
        made = parts(name, str(archive), (ForcedRolloutActor, {"vocabulary": vocabulary}))
        async with RayStage(seed=0, name="fidelity", log_dir=folder / "logs") as stage:
            return await play(stage, name, made, generators, rounds, say)


# --- as predicted ----------------------------------------------------------------------------------


def predict(name: str, engines: Sequence[SimulatedOptions], message_s: float, rounds: int) -> dict[str, Any]:
    """As `play`, in virtual time."""
    generators = [
        Part(
            name=f"generator-{index}",
            actor=GeneratorActor,
            arguments={
                "model": "",
                "options": options,
                "balancer": ActorRef(f"balancer-{STRATEGIES[0]}"),
                "script": SCRIPT,
            },
        )
        for index, options in enumerate(engines)
    ]

    async def played(archive: str) -> dict[str, Any]:
        async with VirtualStage(seed=0, network=Network(latency_s=message_s)) as stage:
            made = parts(name, archive, (RolloutActor, {"model": None}))
            return await play(stage, name, made, generators, rounds, lambda _: None)

    with scratch_folder("greenroom-fidelity-") as archive:
        return run_virtual(played(str(archive)))


def scaled(calibrations: Sequence[Calibration], factor: float, kv_tokens: int) -> list[SimulatedOptions]:
    """The engines with steps that take `factor` times as long, and the KV that the real ones had."""
    made = []
    for calibration in calibrations:
        cost = StepCost(**{name: factor * value for name, value in calibration.cost.model_dump().items()})
        limits = calibration.limits.model_copy(update={"kv_blocks": kv_tokens // calibration.limits.block_tokens})
        made.append(calibration.options().model_copy(update={"cost": cost, "limits": limits}))
    return made


# --- calibration -----------------------------------------------------------------------------------


def calibrate_one(folder: Path, core: int, say: Callable[[str], None]) -> None:
    """In a process of its own: measure the engine on a core."""
    pin(core)
    host_engine_here()
    found = asyncio.run(calibrate(model=model_in(folder), options=ENGINE, threads=1, repeats=3, seed=core, say=say))
    (folder / f"calibration-{core}.json").write_text(found.model_dump_json(indent=2))


# --- side by side ----------------------------------------------------------------------------------


def compare(folder: Path, name: str, calibrations: Sequence[Calibration]) -> dict[str, Any]:
    """Real and predicted makespans of one workload, which has been run for real."""
    real = json.loads((folder / f"real-{name}.json").read_text())
    kv_tokens, message_s, rounds = real["kv_tokens"], real["message_s"], len(real["seconds"][STRATEGIES[0]])
    alone = predict(name, scaled(calibrations, 1.0, kv_tokens), message_s, rounds)
    factor = median(real["calibration"]) / median(alone["calibration"])
    predicted = predict(name, scaled(calibrations, factor, kv_tokens), message_s, rounds)
    rows = {}
    for strategy in STRATEGIES:
        times = real["seconds"][strategy]
        measured, expected = median(times), median(predicted["seconds"][strategy])
        spread = (max(times) - min(times)) / measured
        allowed = max(ALLOWED, 2 * spread)
        error = expected / measured - 1
        rows[strategy] = {
            "measured_s": measured, "spread": spread, "predicted_s": expected, "error": error, "allowed": allowed,
            "within": abs(error) <= allowed,
        }  # fmt: skip
    orders = {
        side: sorted(STRATEGIES, key=lambda strategy: rows[strategy][f"{side}_s"]) for side in ("measured", "predicted")
    }
    ratios = {
        strategy: {side: rows[strategy][f"{side}_s"] / rows["predictive"][f"{side}_s"] for side in orders}
        for strategy in STRATEGIES
    }
    return {
        "workload": name,
        "rounds": rounds,
        "factor": factor,
        "message_s": message_s,
        "strategies": rows,
        "orders": orders,
        "ratios_to_predictive": ratios,
    }
