"""Demonstrations are made from what the real sandbox says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from actors.environment import EnvironmentActor
from actors.fine_tuning import FineTuning
from actors.messages import RunCall, RunFineTuning
from actors.system.actor import ActorRef
from actors.tokenizer import PromptOptions, load_chat_format
from env.tool_call import PYTHON_TOOL, Limits, ToolCall
from orchestration.tiny_model import write_tokenizer
from policies.demonstrations import Script
from policies.dialogue import DialogueLimits
from policies.stages import FineTuningOptions
from tests.support.in_process_stage import InProcessStage

LIMITS = DialogueLimits(max_tokens=400, tool_response_characters=200, call=Limits(wall_seconds=5))


@pytest.fixture
async def stage() -> AsyncIterator[InProcessStage]:
    async with InProcessStage() as stage:
        await stage.host("environment", EnvironmentActor(limits=LIMITS.call, workers=2, run_id="test-fine-tuning"))
        yield stage


async def _nothing(*_: object) -> None:
    return None


def fine_tuning(stage: InProcessStage, folder: Path) -> FineTuning:
    write_tokenizer(folder, 512)
    request = RunFineTuning(
        name="sft", options=FineTuningOptions(kind="fine_tune", steps=1, demonstrations=60), limits=LIMITS
    )
    return FineTuning(
        stage.port,
        request,
        chat=load_chat_format(str(folder), PromptOptions(instructions=False)),
        learner=ActorRef("learner"),
        environments=[ActorRef("environment")],
        run_seed=0,
        position=None,
        stepped=_nothing,
    )


async def test_broken_programs_of_one_shape_fail_alike(stage: InProcessStage, tmp_path: Path) -> None:
    """The short cut against the long way: every program run in the sandbox."""
    stage_one = fine_tuning(stage, tmp_path)
    expressions = ["1234 * 5678", "9021 * 3345", "7 % 3", "(4444 + 1010) * 2222", "(9876 + 5432) * 1098"]
    for form in ("print({}", "show({})"):
        for expression in expressions:
            program = form.format(expression)
            script = Script("", expression, (program,), (), (PYTHON_TOOL,))
            short = await stage_one._failure(program, script)
            call = ToolCall(id=program, code=program, limits=LIMITS.call)
            ran = (await stage.port.ask(ActorRef("environment"), RunCall(call=call), 60)).result
            assert (short.status, short.stderr) == (ran.status, ran.stderr) and short.status == "error"
    assert len(stage_one._failures) == 6, "five expressions of three shapes, each broken in two ways"


async def test_dialogues_longer_than_the_limit_are_left_out(stage: InProcessStage, tmp_path: Path) -> None:
    stage_one = fine_tuning(stage, tmp_path)
    made = await stage_one._demonstrations(LIMITS)
    lengths = sorted(sequence.length for sequence in made)
    stage_one._limits = LIMITS.model_copy(update={"max_tokens": lengths[30]})
    assert sorted(sequence.length for sequence in stage_one._that_fit(made)) == [
        length for length in lengths if length <= lengths[30]
    ]
    stage_one._limits = LIMITS.model_copy(update={"max_tokens": lengths[0] - 1})
    with pytest.raises(
        ValueError, match=f"all 60 dialogues of stages.sft are longer than limits.max_tokens={lengths[0] - 1}"
    ):
        stage_one._that_fit(made)


async def test_demonstrations_are_as_many_as_asked_and_learn_something(stage: InProcessStage, tmp_path: Path) -> None:
    sequences = await fine_tuning(stage, tmp_path)._demonstrations(LIMITS)
    assert len(sequences) == 60
    assert all(0 < sequence.learned_tokens < sequence.length for sequence in sequences)
