"""Demonstrations for the non-reasoning SFT stage: format and tool use, with sloppy habits left in on purpose.

A demonstration is a dialogue in the chat format of rollouts: the same code path puts it together, so what is
learned is what is sampled later. The habits are the ones that reinforcement learning has to remove: mistaken
operators, and calls that fail first and are then mended.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from env.tool_call import PYTHON_TOOL, ToolName, ToolResult
from policies import tokens
from policies.arithmetic import Posed, evaluate
from policies.batch import TrainingSequence
from policies.chat_format import ChatFormat
from policies.options import Options
from policies.tool_calls import result_text, written_call

PLANS = (" I compute it with code.</reason>\n", " Let me run it.</reason>\n")
MENDS = (" That call failed. I mend it.</reason>\n", " An error. Once more.</reason>\n")
READS = (" That is the result.</reason>\n", " The code has printed it.</reason>\n")
NO_TOOLS = " I work it out.</reason>\n"
ANSWER = "<answer>\\boxed{{{answer}}}</answer>"
BROKEN = ("print({expression}", "show({expression})")
"""Programs that fail: a bracket that is not closed, a name that does not exist."""


class HabitOptions(Options):
    """How sloppy the demonstrations are."""

    mistakes: Annotated[float, Field(ge=0)] = 1.0
    """Scales how often each family's mistaken operators are shown."""
    failing_calls: Annotated[float, Field(ge=0, le=1)] = 0.4
    """Share of demonstrations whose first call fails and is then mended."""


@dataclass(frozen=True, slots=True)
class Script:
    """What a demonstration says, before the results of its calls are known."""

    question: str
    expression: str
    """What the last program prints the value of."""
    programs: tuple[str, ...]
    """Programs in the order of the calls: perhaps a broken one, then one that works."""
    texts: tuple[str, ...]
    """What is said before each call, and with the answer."""
    tools: tuple[ToolName, ...]
    """What the model is told of; the first one is called."""


def write_script(posed: Posed, habits: HabitOptions, rng: random.Random, *, tools: tuple[ToolName, ...]) -> Script:
    """The script of one demonstration."""
    expression = posed.mistaken if rng.random() < posed.mistaken_share * habits.mistakes else posed.expression
    closing = ANSWER.format(answer=evaluate(expression))
    if not tools:
        return Script(posed.problem.question, expression, (), (NO_TOOLS + closing,), tools)
    programs, texts = [], [rng.choice(PLANS)]
    if rng.random() < habits.failing_calls:
        programs.append(rng.choice(BROKEN).format(expression=expression))
        texts.append(rng.choice(MENDS))
    programs.append(f"print({expression})")
    texts.append(rng.choice(READS) + closing)
    return Script(posed.problem.question, expression, tuple(programs), tuple(texts), tools)


def call_text(program: str, tool: ToolName = PYTHON_TOOL) -> str:
    """A tool call as a model writes it."""
    arguments = {"code": program, "input": ""} if tool == PYTHON_TOOL else {"code": program}
    return written_call(tool, arguments)


def expected_result(program: str, expression: str) -> ToolResult:
    """What the sandbox answers to `print(expression)`: known without running it."""
    assert program == f"print({expression})", f"only running it tells what {program!r} prints"
    return ToolResult(id=program, status="success", stdout=f"{evaluate(expression)}\n", exit_code=0)


def sequence_from_script(
    script: Script, results: tuple[ToolResult, ...], chat: ChatFormat, response_characters: int
) -> TrainingSequence:
    """The demonstration as tokens; only what the assistant says is learned.

    Args:
        results: one for each program of the script.
        response_characters: as in `DialogueLimits.tool_response_characters`.
    """
    assert len(results) == len(script.programs), f"{len(script.programs)} calls, but {len(results)} results"
    ids = chat.prompt(script.question, script.tools)
    learned = bytearray(len(ids))
    for position, text in enumerate(script.texts):
        is_call = position < len(script.programs)
        turn = chat.model_turn(text + (call_text(script.programs[position], script.tools[0]) if is_call else ""))
        ids, learned = ids + turn, learned + b"\x01" * len(turn)
        if is_call:
            response = chat.tool_turn([result_text(results[position], response_characters)])
            ids, learned = ids + response, learned + bytes(len(response))
    return TrainingSequence(ids=tokens.pack_ids(ids), learned=bytes(learned))
