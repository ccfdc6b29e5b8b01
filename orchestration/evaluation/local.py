"""Benchmarks on a local model: by the same actors as in training (generators, environments, rollouts, balancer)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal

from actors.messages import RunRollout
from actors.system.actor import ActorError, ActorRef, CannotGoOn, Port, in_a_line
from actors.system.ray_stage import RayStage
from actors.tokenizer import PromptOptions
from env.preflight import check_host
from orchestration.as_trained import AsTrained, as_trained
from orchestration.cast import cast_for, enter
from orchestration.evaluation.answers import Answer, Part, Wanted
from orchestration.evaluation.benchmarks import PROMPTS, Style
from orchestration.preflight import HostUnfit, model_shape
from orchestration.recipe import Recipe, RecipeError
from orchestration.recipe_loading import validate_recipe
from policies import tokens
from policies.chat_format import ChatFormat
from policies.dialogue import DialogueLimits
from policies.trajectory import Finish, Trajectory

logger = logging.getLogger(__name__)

ROLLOUT_DEADLINE_S = 7200.0
CPU_KV_TOKENS = 32_768
"""KV cache of a generator on a CPU, if no sequence is longer."""
BLOCK_TOKENS = 32
AT_ONCE = 512
"""Rollouts that are asked for at once; the balancer decides which of them run."""


@dataclass(frozen=True, slots=True)
class Manner:
    """How the problems of one style are put to a model, and what it may use."""

    prompt: PromptOptions
    trained: AsTrained | None
    """The run that taught the model its prompt, tools and limits of calls; None: the benchmark's own."""

    def limits(self, wanted: Wanted) -> DialogueLimits:
        """Length and turns are the evaluation's, in any case."""
        if self.trained is None:
            return wanted.limits
        learned = self.trained.limits
        return wanted.limits.model_copy(
            update={name: getattr(learned, name) for name in ("tools", "call", "tool_response_characters")}
        )


def manner_of(model: Path, style: Style, instructions: bool | None, opening: str | None) -> Manner:
    """Problems to reason about are put to a checkpoint of a run as that run put them, unless the user says otherwise.

    Raises `RecipeError` if the run's recipe can't be read.
    """
    trained = as_trained(model) if style == "reasoning" else None
    prompt = trained.prompt if trained is not None else PROMPTS[style]
    given = {"instructions": instructions, "opening": opening}
    return Manner(prompt.model_copy(update={key: it for key, it in given.items() if it is not None}), trained)


def recipe_for(
    model: Path, manner: Manner, longest: int, *, engine: Sequence[str], generators: int, gpus: float, seed: int
) -> Recipe:
    """A recipe whose cast plays benchmarks of one manner: as for training, but nothing is learned.

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
            "prompt": manner.prompt.model_dump(),
            **({"tools": manner.trained.limits.tools} if manner.trained is not None else {}),
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


def prompts_that_fit(
    wanted: Sequence[Wanted], chat: ChatFormat, manner: Manner, keep: Callable[[Answer], None]
) -> list[Wanted]:
    """What can be played. A prompt that leaves no room for a token is an answer that was cut off; `keep` takes it.

    Raises `RecipeError` if no prompt of a benchmark leaves room.
    """
    fitting: list[Wanted] = []
    for name, group in groupby(wanted, key=lambda each: each.benchmark.name):
        first, *_ = samples = list(group)
        tools, most = manner.limits(first).tools, first.settings.max_tokens
        lengths = {problem.id: len(chat.prompt(problem.question, tools)) for problem in first.benchmark.problems}
        shortest = min(lengths.values())
        if shortest >= most:
            raise RecipeError(
                f"{name}: no prompt leaves room for an answer within {most} tokens, the shortest has {shortest}; give "
                "a larger --max-tokens or, to a model that takes no more, --no-instructions"
            )
        for each in samples:
            length = lengths[each.problem.id]
            if length < most:
                fitting.append(each)
            else:
                keep(_unplayed(each, "length", f"its prompt has {length} tokens, {most} are allowed in all"))
    return fitting


async def play_locally(
    recipe: Recipe,
    manner: Manner,
    chat: ChatFormat,
    wanted: Sequence[Wanted],
    folder: Path,
    keep: Callable[[Answer], None],
) -> None:
    """Play what is wanted, all of one manner; `keep` takes each answer when it is there."""
    model = recipe.model.path
    assert model is not None, "`recipe_for` names a model on disk"
    cast = cast_for(recipe, model=model, folder=folder, run_id=folder.name)
    async with RayStage(seed=recipe.seed, name=folder.name, log_dir=folder / "logs") as stage:
        # Nothing is learned; the director is there for its supervision of generators.
        await enter(stage, cast, without=cast.learner)
        rollouts = [ActorRef(part.name) for part in cast.rollouts]
        places = asyncio.Semaphore(AT_ONCE)

        async def one(index: int, each: Wanted) -> None:
            async with places:
                answer = await _play(stage.port, rollouts[index % len(rollouts)], each, manner.limits(each), chat)
            keep(answer)

        await asyncio.gather(*[one(index, each) for index, each in enumerate(wanted)])


async def _play(port: Port, rollout: ActorRef, wanted: Wanted, limits: DialogueLimits, chat: ChatFormat) -> Answer:
    request = RunRollout(
        id=wanted.id,
        group=f"{wanted.benchmark.name}/{wanted.problem.id}",
        sample=wanted.sample,
        stage=wanted.benchmark.name,
        step=0,
        problem=wanted.problem,
        limits=limits,
        temperature=wanted.settings.temperature,
    )
    try:
        finished = await port.ask(rollout, request, ROLLOUT_DEADLINE_S, unless_at_work=True)
    except CannotGoOn:  # the archive can't be written, say: so it will be with all that follow
        raise
    except ActorError as error:
        logger.warning("%s: %s", wanted.id, error)
        return _unplayed(wanted, "failed", in_a_line(error))
    return answer_of(finished.trajectory, wanted, chat)


def _unplayed(wanted: Wanted, finish: Finish | Literal["failed"], reason: str) -> Answer:
    """An answer without a word; wrong."""
    return wanted.answer(
        parts=(), correct=False, reason=reason, finish=finish, response_tokens=0, turns=0, calls=0, tool_errors=0
    )


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
