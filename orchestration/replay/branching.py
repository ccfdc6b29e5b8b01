"""Replay one trajectory from a given turn on: the same history, other continuations, with a real engine and sandbox.

Invariants:
- what comes before the turn is the stored history, token by token: a dialogue that would not repeat it is refused;
- from the turn on everything is real: the model samples, its calls run, its answer is compared. Cells find the names
  that those of the history have made: these are run again, and nothing of what they print is read.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from actors.engines.engine import Engine, SampleRequest
from actors.system.actor import seed_for
from actors.tokenizer import load_chat_format
from actors.verification import Verifier
from env.interpreters import Interpreters
from env.tool_call import Cell
from orchestration.hosted_engine import hosted_engine
from orchestration.recipe import Recipe, RecipeError
from orchestration.replay.recorded_run import RecordedRun
from policies import tokens
from policies.chat_format import ChatFormat
from policies.dialogue import Dialogue, DialogueLimits, Execute, Finished, Sample, Verify
from policies.options import LimitOptions
from policies.trajectory import Trajectory, version_runs, whole_turns


class HistoryDiffers(ValueError):
    """The stored history can't be repeated with this tokenizer and these limits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Branching:
    """What to try."""

    turn: int
    """The first model turn that is sampled anew, from 0."""
    samples: int
    temperature: float
    seed: int
    limits: DialogueLimits


def stage_limits(recipe: Recipe, stage: str) -> tuple[LimitOptions, float]:
    """Limits and temperature of a stage of the run, or of the evaluation after one. Raises `RecipeError`."""
    if stage.startswith("evaluation-"):
        return recipe.evaluation.limits, recipe.evaluation.temperature
    options = recipe.stages.get(stage)
    if options is None or options.kind == "fine_tune":
        raise RecipeError(f"the recipe has no stage {stage!r} that samples; give the run's own")
    return options.limits, options.temperature


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedBranching:
    """What a user asks for, with the parts of the run that it takes."""

    recipe: Recipe
    model: Path
    """Folder of the weights and their tokenizer."""
    branching: Branching


def branching_of(
    run: RecordedRun,
    trajectory: Trajectory,
    *,
    turn: int,
    checkpoint: str | None,
    temperature: float | None,
    samples: int,
    seed: int,
) -> AskedBranching:
    """Fill in from the run what is None. Raises `RecipeError` for weights that there are not."""
    recipe = run.required_recipe()
    limits, own_temperature = stage_limits(recipe, trajectory.stage)
    if checkpoint is None:
        model = run.weights_of(recipe, trajectory.stage, "--checkpoint")
    else:
        model = _named_weights(run, recipe, checkpoint)
    return AskedBranching(
        recipe=recipe,
        model=model,
        branching=Branching(
            turn=turn,
            samples=samples,
            temperature=own_temperature if temperature is None else temperature,
            seed=seed,
            limits=DialogueLimits(**limits.model_dump(), tools=recipe.tools),
        ),
    )


def _named_weights(run: RecordedRun, recipe: Recipe, checkpoint: str) -> Path:
    """The folder of a checkpoint that is named by its stage or its path. Raises `RecipeError`."""
    found = run.checkpoint(checkpoint) or Path(checkpoint)
    if not (found / "config.json").exists():
        kept = [name for name in recipe.stages if run.checkpoint(name) is not None]
        raise RecipeError(
            f"there are no weights {checkpoint!r}; give --checkpoint a folder, or one of {', '.join(kept) or 'none'}"
        )
    return found


async def branched(trajectory: Trajectory, asked: AskedBranching) -> list[Trajectory]:
    """Start an engine and a sandbox, and continue the trajectory. Raises what `branch` raises.

    Needs a process prepared by `orchestration.engine_environment`.
    """
    recipe, branching = asked.recipe, asked.branching
    chat = load_chat_format(str(asked.model), recipe.prompt)
    forwarded(trajectory, chat, branching, trajectory.id)  # before half a minute is spent on an engine
    settings = recipe.environments
    interpreters = Interpreters(
        branching.limits.call, settings.workers, run_id="replay-branching", isolation=settings.isolation
    )
    verifier = Verifier()
    try:
        async with hosted_engine(
            asked.model, recipe.generators.engine, threads=recipe.generators.threads, seed=branching.seed
        ) as (engine, _):
            return await branch(
                trajectory, branching, chat=chat, engine=engine, interpreters=interpreters, verifier=verifier
            )
    finally:
        await asyncio.gather(interpreters.close(), verifier.close())


def forwarded(trajectory: Trajectory, chat: ChatFormat, branching: Branching, name: str) -> Dialogue:
    """A dialogue that has said and heard what the stored one had when turn `branching.turn` began.

    Raises `HistoryDiffers` where it would not be the same dialogue, and `ValueError` for a turn that there is not.
    """
    if not 0 <= branching.turn < trajectory.turns:
        raise ValueError(f"--from-turn {branching.turn}: {trajectory.id} has turns 0 to {trajectory.turns - 1}")
    dialogue = Dialogue(id=name, chat=chat, problem=trajectory.problem, limits=branching.limits)
    sampled = [spans for spans in whole_turns(trajectory.spans) if spans[0].kind == "model"][: branching.turn]
    for turn, spans in enumerate(sampled):
        *earlier, (version, _) = version_runs(spans)
        ids, logprobs = tokens.concatenate(span.ids for span in spans), b"".join(span.logprobs for span in spans)
        dialogue.sampled(ids, logprobs, version, earlier)
        results = [record.result for record in trajectory.calls if record.turn == turn]
        action = dialogue.next_action()
        if isinstance(action, Execute):
            if len(action.calls) > len(results):
                raise HistoryDiffers(f"turn {turn} of {trajectory.id} now asks for other calls than it made")
            ran = [result for result in results if result.status != "invalid_call"]
            named = zip(action.calls, ran, strict=False)
            dialogue.executed([result.model_copy(update={"id": call.id}) for call, result in named])
    if dialogue.spans != list(trajectory.spans[: len(dialogue.spans)]) or dialogue.turns != branching.turn:
        raise HistoryDiffers(
            f"the history of {trajectory.id} up to turn {branching.turn} is not what this model's tokenizer and these "
            "limits make of it; give the recipe and a model of the run"
        )
    return dialogue


async def branch(
    trajectory: Trajectory,
    branching: Branching,
    *,
    chat: ChatFormat,
    engine: Engine,
    interpreters: Interpreters,
    verifier: Verifier,
) -> list[Trajectory]:
    """Continue the trajectory from a turn on, `branching.samples` times.

    Raises what `forwarded` raises, `EngineFailed`, and `OSError` if the host can't have sessions now.
    """
    names = [f"{trajectory.id}~{index}" for index in range(branching.samples)]
    dialogues = [forwarded(trajectory, chat, branching, name) for name in names]
    for name in names:
        await _begin_session(interpreters, name, trajectory, branching.turn)
    plays = [_play(dialogue, branching, chat, engine, interpreters, verifier) for dialogue in dialogues]
    finished = await asyncio.gather(*plays)
    return [
        _branch_of(trajectory, sample, dialogue, end)
        for sample, (dialogue, end) in enumerate(zip(dialogues, finished, strict=True))
    ]


async def _begin_session(interpreters: Interpreters, name: str, trajectory: Trajectory, turn: int) -> None:
    """Make session `name` what the stored one was when the turn began, if there was one."""
    ran = [each for each in trajectory.calls if each.call.session and each.turn < turn]
    if not ran:
        return
    cells = [
        Cell(code=each.call.code, limits=each.call.limits)
        for each in ran
        if each.result.status != "sandbox_failure" and not each.result.session_ended
    ]
    ended = ran[-1].result.session_ended  # then the next cell is told that its process is another one
    await interpreters.adopt(name, cells, last_call=ran[-1].call.id if ended else "")


async def _play(
    dialogue: Dialogue,
    branching: Branching,
    chat: ChatFormat,
    engine: Engine,
    interpreters: Interpreters,
    verifier: Verifier,
) -> Finished:
    while True:
        match dialogue.next_action():
            case Sample(turn, max_tokens):
                request = SampleRequest(
                    id=f"{dialogue.id}#{turn}",
                    ids=tokens.unpack_ids(dialogue.ids_from(0)),
                    max_tokens=max_tokens,
                    temperature=branching.temperature,
                    stop_ids=chat.stop_ids,
                    seed=seed_for(branching.seed, f"{dialogue.id}#{turn}") >> 1,
                )
                result = await engine.sample(request)
                dialogue.sampled(tokens.pack_ids(result.ids), tokens.pack_floats(result.logprobs), result.version)
            case Execute(calls):
                dialogue.executed(await asyncio.gather(*[interpreters.run(call) for call in calls]))
            case Verify(extracted, gold):
                dialogue.verified(await verifier.compare(extracted, gold))
            case Finished() as finished:
                return finished


def _branch_of(trajectory: Trajectory, sample: int, dialogue: Dialogue, finished: Finished) -> Trajectory:
    return Trajectory(
        id=dialogue.id,
        group=trajectory.id,
        sample=sample,
        stage=trajectory.stage,
        step=trajectory.step,
        problem=trajectory.problem,
        spans=tuple(dialogue.spans),
        calls=tuple(dialogue.calls),
        turns=dialogue.turns,
        answer_tags=dialogue.answer_tags,
        finish=finished.finish,
        verdict=finished.verdict,
        reward=float(finished.verdict.correct),
        generator="replay",
    )
