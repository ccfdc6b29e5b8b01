"""Benchmarks on a local model: by the same actors as in training (generators, environments, rollouts, balancer)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from actors.messages import RunRollout
from actors.system.actor import ActorError, ActorRef, Port
from actors.system.ray_stage import RayStage
from actors.tokenizer import load_chat_format
from env.preflight import check_host
from env.tool_call import PYTHON_TOOL
from orchestration.cast import cast_for
from orchestration.evaluation.answers import Answer, AnswerFile, Part
from orchestration.evaluation.benchmarks import PROMPTS, Benchmark, Settings, Style
from orchestration.preflight import HostUnfit, model_shape
from orchestration.recipe import Recipe
from orchestration.recipe_loading import validate_recipe
from policies import tokens
from policies.chat_format import ChatFormat
from policies.dialogue import DialogueLimits
from policies.trajectory import Problem, Trajectory

ROLLOUT_DEADLINE_S = 7200.0
CPU_KV_TOKENS = 32_768
"""KV cache of a generator on a CPU, if no sequence is longer."""
BLOCK_TOKENS = 32
AT_ONCE = 512
"""Rollouts that are asked for at once; the balancer decides which of them run."""


def recipe_for(
    model: Path, style: Style, longest: int, *, engine: dict[str, object], generators: int, gpus: float, seed: int
) -> Recipe:
    """A recipe whose cast plays a benchmark of one style: as for training, but nothing is learned.

    Args:
        longest: tokens of the longest sequence.
        engine: `generators.engine` of recipes, where it differs from the defaults.
        gpus: of each generator.
    """
    limits = {"max_tokens": longest, "max_turn_tokens": longest}
    return validate_recipe(
        {
            "name": "evaluation",
            "seed": seed,
            "model": {"path": str(model)},
            "prompt": PROMPTS[style].model_dump(),
            "generators": {"count": generators, "gpus": gpus, "engine": _engine(longest, gpus) | engine},
            "environments": {"count": 1},
            "rollouts": {"count": 1},
            "evaluation": {"limits": limits},
            "stages": {"none": {"kind": "reinforce", "steps": 1, "limits": limits}},
        },
        "evaluation",
    )


def _engine(longest: int, gpus: float) -> dict[str, object]:
    """Settings that hold the longest sequence. On a CPU the KV cache is bounded: vLLM would take most of the memory."""
    if gpus:
        return {"max_sequence_tokens": longest}
    blocks = -(-max(longest, CPU_KV_TOKENS) // BLOCK_TOKENS)
    return {"max_sequence_tokens": longest, "kv_tokens": blocks * BLOCK_TOKENS, "block_tokens": BLOCK_TOKENS}


def check_local(recipe: Recipe) -> None:
    """Raise `RecipeError` if there is no model, or this machine can't isolate the code that it writes.

    Memory is not compared: a recipe's plan counts a learner, and there is none.
    """
    model_shape(recipe.model)
    faults = [str(problem) for problem in check_host()]
    if faults:
        raise HostUnfit("this machine can't run models' code:\n  " + "\n  ".join(faults))


async def play_locally(
    recipe: Recipe,
    benchmarks: list[tuple[Benchmark, Settings]],
    file: AnswerFile,
    folder: Path,
    advance: Callable[[Answer], None],
) -> None:
    """Play what the file lacks; the benchmarks share one style."""
    model = recipe.model.path
    assert model is not None, "`recipe_for` names a model on disk"
    cast = cast_for(recipe, model=model, folder=folder, run_id=folder.name)
    chat = load_chat_format(str(model), recipe.prompt)
    async with RayStage(seed=recipe.seed, name=folder.name, log_dir=folder / "logs") as stage:
        await stage.spawn(cast.balancer)
        # Nothing is learned; the director is there for its supervision of generators.
        await stage.spawn(*[part for part in cast.parts() if part is not cast.balancer and part is not cast.learner])
        rollouts = [ActorRef(part.name) for part in cast.rollouts]
        places = asyncio.Semaphore(AT_ONCE)
        wanted = [
            (benchmark, settings, problem, sample)
            for benchmark, settings in benchmarks
            for problem in benchmark.problems
            for sample in file.missing(benchmark.name, problem.id, settings.samples)
        ]

        async def one(index: int, benchmark: Benchmark, settings: Settings, problem: Problem, sample: int) -> None:
            async with places:
                request = _request(benchmark, settings, problem, sample)
                answer = await _play(stage.port, rollouts[index % len(rollouts)], request, benchmark, chat)
            file.add(answer)
            advance(answer)

        await asyncio.gather(*[one(index, *each) for index, each in enumerate(wanted)])


def _request(benchmark: Benchmark, settings: Settings, problem: Problem, sample: int) -> RunRollout:
    return RunRollout(
        id=f"{benchmark.name}/{problem.id}/{sample}",
        group=f"{benchmark.name}/{problem.id}",
        sample=sample,
        stage=benchmark.name,
        step=0,
        problem=problem,
        limits=DialogueLimits(
            max_tokens=settings.max_tokens,
            max_turn_tokens=settings.max_tokens,
            max_turns=settings.max_turns,
            tools=(PYTHON_TOOL,) if benchmark.style == "reasoning" else (),
        ),
        temperature=settings.temperature,
    )


async def _play(port: Port, rollout: ActorRef, request: RunRollout, benchmark: Benchmark, chat: ChatFormat) -> Answer:
    try:
        finished = await port.ask(rollout, request, ROLLOUT_DEADLINE_S)
    except ActorError as error:
        problem = request.problem
        return Answer(
            benchmark=benchmark.name,
            problem=problem.id,
            family=problem.family,
            question=problem.question,
            gold=problem.gold,
            sample=request.sample,
            parts=(),
            correct=False,
            reason=str(error),
            finish="failed",
            response_tokens=0,
            turns=0,
            calls=0,
            tool_errors=0,
        )
    return answer_of(finished.trajectory, benchmark, chat)


def answer_of(trajectory: Trajectory, benchmark: Benchmark, chat: ChatFormat) -> Answer:
    """What is kept of a trajectory; a rule grader's verdict takes the place of the dialogue's own."""
    parts = tuple(
        Part(who="model" if span.kind == "model" else "tool", text=chat.decode(tokens.unpack_ids(span.ids)))
        for span in trajectory.spans[1:]
    )
    answer = Answer(
        benchmark=benchmark.name,
        problem=trajectory.problem.id,
        family=trajectory.problem.family,
        question=trajectory.problem.question,
        gold=trajectory.problem.gold,
        sample=trajectory.sample,
        parts=parts,
        extracted=trajectory.verdict.extracted,
        correct=trajectory.verdict.correct,
        reason=trajectory.verdict.reason,
        finish=trajectory.finish,
        response_tokens=trajectory.response_tokens,
        turns=trajectory.turns,
        calls=len(trajectory.calls),
        tool_errors=trajectory.tool_errors,
    )
    return graded(answer, benchmark, chat.end_of_turn)


def graded(answer: Answer, benchmark: Benchmark, end_of_turn: str = "") -> Answer:
    """The answer with its rule grader's verdict, if the benchmark has graders.

    Such a benchmark has one turn: that its text holds what looks like a call does not cut it off.
    """
    if answer.problem not in benchmark.graders:
        return answer
    said = answer.parts[0].text if answer.parts else ""
    verdict = benchmark.graders[answer.problem](said.removesuffix(end_of_turn))
    return answer.model_copy(
        update={
            "correct": verdict.correct,
            "reason": verdict.reason or "right",
            "figures": verdict.figures,
            "extracted": "",
            "finish": "length" if answer.finish == "length" else "answered",
            "calls": 0,
            "tool_errors": 0,
        }
    )
