"""Benchmarks on a local model: by the same actors as in training (generators, environments, rollouts, balancer)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from actors.messages import RunRollout
from actors.system.actor import ActorError, ActorRef, Port
from actors.system.ray_stage import RayStage
from actors.tokenizer import load_chat_format
from env.preflight import check_host
from orchestration.cast import cast_for, enter
from orchestration.evaluation.answers import Answer, Part, Wanted
from orchestration.evaluation.benchmarks import PROMPTS, Style
from orchestration.preflight import HostUnfit, model_shape
from orchestration.recipe import Recipe
from orchestration.recipe_loading import validate_recipe
from policies import tokens
from policies.chat_format import ChatFormat
from policies.trajectory import Trajectory

ROLLOUT_DEADLINE_S = 7200.0
CPU_KV_TOKENS = 32_768
"""KV cache of a generator on a CPU, if no sequence is longer."""
BLOCK_TOKENS = 32
AT_ONCE = 512
"""Rollouts that are asked for at once; the balancer decides which of them run."""


def recipe_for(
    model: Path, style: Style, longest: int, *, engine: Sequence[str], generators: int, gpus: float, seed: int
) -> Recipe:
    """A recipe whose cast plays a benchmark of one style: as for training, but nothing is learned.

    Args:
        longest: tokens of the longest sequence.
        engine: overrides of `generators.engine`, such as `dtype=float32`.
        gpus: of each generator.
    """
    limits = {"max_tokens": longest, "max_turn_tokens": longest}
    return validate_recipe(
        {
            "name": "evaluation",
            "seed": seed,
            "model": {"path": str(model)},
            "prompt": PROMPTS[style].model_dump(),
            "generators": {"count": generators, "gpus": gpus, "engine": _engine(longest, gpus)},
            "environments": {"count": 1},
            "rollouts": {"count": 1},
            "evaluation": {"limits": limits},
            "stages": {"none": {"kind": "reinforce", "steps": 1, "limits": limits}},
        },
        "evaluation",
        [f"generators.engine.{override}" for override in engine],
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


async def play_locally(recipe: Recipe, wanted: Sequence[Wanted], folder: Path, keep: Callable[[Answer], None]) -> None:
    """Play what is wanted, all of one style; `keep` takes each answer when it is there."""
    model = recipe.model.path
    assert model is not None, "`recipe_for` names a model on disk"
    cast = cast_for(recipe, model=model, folder=folder, run_id=folder.name)
    chat = load_chat_format(str(model), recipe.prompt)
    async with RayStage(seed=recipe.seed, name=folder.name, log_dir=folder / "logs") as stage:
        # Nothing is learned; the director is there for its supervision of generators.
        await enter(stage, cast, without=cast.learner)
        rollouts = [ActorRef(part.name) for part in cast.rollouts]
        places = asyncio.Semaphore(AT_ONCE)

        async def one(index: int, each: Wanted) -> None:
            async with places:
                answer = await _play(stage.port, rollouts[index % len(rollouts)], each, chat)
            keep(answer)

        await asyncio.gather(*[one(index, each) for index, each in enumerate(wanted)])


async def _play(port: Port, rollout: ActorRef, wanted: Wanted, chat: ChatFormat) -> Answer:
    request = RunRollout(
        id=wanted.id,
        group=f"{wanted.benchmark.name}/{wanted.problem.id}",
        sample=wanted.sample,
        stage=wanted.benchmark.name,
        step=0,
        problem=wanted.problem,
        limits=wanted.limits,
        temperature=wanted.settings.temperature,
    )
    try:
        finished = await port.ask(rollout, request, ROLLOUT_DEADLINE_S)
    except ActorError as error:
        return wanted.answer(
            parts=(),
            correct=False,
            reason=str(error),
            finish="failed",
            response_tokens=0,
            turns=0,
            calls=0,
            tool_errors=0,
        )
    return answer_of(finished.trajectory, wanted, chat)


def answer_of(trajectory: Trajectory, wanted: Wanted, chat: ChatFormat) -> Answer:
    """What is kept of a trajectory."""
    return wanted.answer(
        chat.end_of_turn,
        parts=tuple(
            Part(who="model" if span.kind == "model" else "tool", text=chat.decode(tokens.unpack_ids(span.ids)))
            for span in trajectory.spans[1:]
        ),
        extracted=trajectory.verdict.extracted,
        correct=trajectory.verdict.correct,
        reason=trajectory.verdict.reason,
        finish=trajectory.finish,
        response_tokens=trajectory.response_tokens,
        turns=trajectory.turns,
        calls=len(trajectory.calls),
        tool_errors=trajectory.tool_errors,
    )
