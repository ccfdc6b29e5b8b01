"""Branches share the stored history token by token, and everything after it is played anew."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from actors.engines.engine import SampleRequest, SampleResult
from actors.tokenizer import PromptOptions, load_chat_format
from actors.verification import Verifier
from env.image import Image
from env.interpreters import Interpreters
from env.tool_call import JUPYTER_TOOL, PYTHON_TOOL, Limits
from orchestration.replay.branch_view import tokens_alike, turns_before
from orchestration.replay.branching import Branching, HistoryDiffers, branch, forwarded
from orchestration.tiny_model import write_tokenizer
from policies import tokens
from policies.chat_format import ChatFormat
from policies.dialogue import Dialogue, DialogueLimits, Execute, Finished
from policies.trajectory import Problem, Trajectory, WeightsVersion

LIMITS = DialogueLimits(max_tokens=512, max_turns=4, max_turn_tokens=200, call=Limits(wall_seconds=60.0))
PROBLEM = Problem(id="sums/1", question="What is 6 * 7?", gold="42", family="sums")


def request(tool: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


def call(program: str) -> str:
    return request(PYTHON_TOOL, code=program, input="")


BROKEN, MENDED, ANSWER = call("print(6 * 7"), call("print(6 * 7)"), "<answer>\\boxed{42}</answer>"


class ScriptedEngine:
    """Says the same texts, whoever asks: the history's number of model turns says which is next."""

    kind = "scripted"

    def __init__(self, chat: ChatFormat, texts: Sequence[str]) -> None:
        self._chat, self._texts, self.asked = chat, texts, list[SampleRequest]()

    async def sample(self, request: SampleRequest) -> SampleResult:
        self.asked.append(request)
        turn = int(request.id.rpartition("#")[2])
        ids = self._chat.model_turn(self._texts[turn])
        return SampleResult(ids=ids, logprobs=[-0.5] * len(ids), finish="stop", version=WeightsVersion(0, 0))


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> ChatFormat:
    folder = tmp_path_factory.mktemp("model")
    write_tokenizer(folder, 512)
    return load_chat_format(str(folder), PromptOptions(instructions=False))


async def played(chat: ChatFormat, texts: Sequence[str], dialogue: Dialogue) -> tuple[Dialogue, Finished]:
    interpreters = Interpreters(LIMITS.call, 2, Image(), "test-branching")
    try:
        while not isinstance(action := dialogue.next_action(), Finished):
            if isinstance(action, Execute):
                dialogue.executed([await interpreters.run(each) for each in action.calls])
            else:
                ids = tokens.pack_ids(chat.model_turn(texts[dialogue.turns]))
                dialogue.sampled(ids, tokens.pack_floats([-0.1] * tokens.count(ids)), WeightsVersion(1, 7))
        return dialogue, action
    finally:
        await interpreters.close()


def play_and_store(chat: ChatFormat, texts: Sequence[str], limits: DialogueLimits) -> Trajectory:
    dialogue = Dialogue(id="rl/0/0/3", chat=chat, problem=PROBLEM, limits=limits)
    dialogue, end = asyncio.run(played(chat, texts, dialogue))
    return Trajectory(
        id=dialogue.id, group="rl/0/0", sample=3, stage="rl", step=0, problem=PROBLEM, spans=tuple(dialogue.spans),
        calls=tuple(dialogue.calls), turns=dialogue.turns, answer_tags=dialogue.answer_tags, finish=end.finish,
        verdict=end.verdict, reward=float(end.verdict.correct), generator="generator-0",
    )  # fmt: skip


@pytest.fixture(scope="module")
def stored(chat: ChatFormat) -> Trajectory:
    """Broken call, mended call, answer."""
    return play_and_store(chat, [BROKEN, MENDED, ANSWER], LIMITS)


def at(turn: int, samples: int = 1, limits: DialogueLimits = LIMITS) -> Branching:
    return Branching(turn=turn, samples=samples, temperature=0.7, seed=11, limits=limits)


def test_the_history_is_the_stored_one_up_to_the_turn(stored: Trajectory, chat: ChatFormat) -> None:
    assert [record.result.status for record in stored.calls] == ["error", "success"] and stored.verdict.correct
    for turn, spans in enumerate((1, 3, 5)):
        dialogue = forwarded(stored, chat, at(turn), "a-branch")
        assert (dialogue.turns, turns_before(stored, turn)) == (turn, spans)
        assert dialogue.spans == list(stored.spans[:spans])
        assert [record.result.stdout for record in dialogue.calls] == [r.result.stdout for r in stored.calls[:turn]]


def test_a_turn_that_there_is_not_is_refused(stored: Trajectory, chat: ChatFormat) -> None:
    with pytest.raises(ValueError, match="--from-turn 3: rl/0/0/3 has turns 0 to 2"):
        forwarded(stored, chat, at(3), "a-branch")


def test_limits_that_make_another_history_are_refused(stored: Trajectory, chat: ChatFormat) -> None:
    shorter = LIMITS.model_copy(update={"tool_response_characters": 3})
    with pytest.raises(HistoryDiffers, match="up to turn 1 is not what this model's tokenizer and these limits make"):
        forwarded(stored, chat, at(1, limits=shorter), "a-branch")


@pytest.mark.slow
async def test_branches_run_their_own_calls_and_are_judged(stored: Trajectory, chat: ChatFormat) -> None:
    engine = ScriptedEngine(chat, ["", call("print(6 + 7)"), "<answer>\\boxed{13}</answer>"])
    interpreters, verifier = Interpreters(LIMITS.call, 2, Image(), "test-branching"), Verifier()
    try:
        branches = await branch(
            stored,
            at(1, samples=2),
            chat=chat,
            engine=engine,  # type: ignore[arg-type]
            interpreters=interpreters,
            verifier=verifier,  # type: ignore[arg-type]
        )
    finally:
        await asyncio.gather(interpreters.close(), verifier.close())
    assert [each.id for each in branches] == ["rl/0/0/3~0", "rl/0/0/3~1"]
    for each in branches:
        assert each.spans[:3] == stored.spans[:3]
        assert [record.result.stdout for record in each.calls] == ["", "13\n"]
        assert (each.verdict.correct, each.verdict.extracted, each.turns) == (False, "13", 3)
        said = chat.decode(tokens.unpack_ids(stored.spans[3].ids)), chat.decode(tokens.unpack_ids(each.spans[3].ids))
        assert said[0][: said[0].index("*")] == said[1][: said[1].index("+")]
        assert 0 < tokens_alike(stored, each, 3) < tokens.count(stored.spans[3].ids)
    first = [request for request in engine.asked if request.id.endswith("#1")]
    history = tokens.unpack_ids(tokens.concatenate([span.ids for span in stored.spans[:3]]))
    assert all(request.ids == history and request.temperature == 0.7 for request in first)
    assert len({request.seed for request in engine.asked}) == len(engine.asked) == 4


@pytest.mark.slow
def test_cells_of_a_branch_find_the_names_of_the_history_and_hear_nothing_of_how(chat: ChatFormat) -> None:
    limits = LIMITS.model_copy(update={"tools": (JUPYTER_TOOL,)})
    begin, go_on = request(JUPYTER_TOOL, code="x = 6\nprint('made')"), request(JUPYTER_TOOL, code="print(x + 7)")
    stored = play_and_store(chat, [begin, ANSWER], limits)

    async def branches() -> list[Trajectory]:
        interpreters, verifier = Interpreters(LIMITS.call, 2, Image(), "test-branching"), Verifier()
        engine = ScriptedEngine(chat, ["", go_on, ANSWER])
        try:
            return await branch(
                stored,
                at(1, samples=2, limits=limits),
                chat=chat,
                engine=engine,  # type: ignore[arg-type]
                interpreters=interpreters,
                verifier=verifier,
            )
        finally:
            await asyncio.gather(interpreters.close(), verifier.close())

    for each in asyncio.run(branches()):
        assert [(record.result.status, record.result.stdout) for record in each.calls] == [
            ("success", "made\n"),
            ("success", "13\n"),
        ]
        assert "lost" not in chat.decode(tokens.unpack_ids(each.spans[4].ids))


def test_the_tokenizer_of_another_model_is_refused(stored: Trajectory, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, 512)
    another = load_chat_format(str(tmp_path), PromptOptions(instructions=False, opening="<answer>"))
    with pytest.raises(HistoryDiffers):
        forwarded(stored, another, at(1), "a-branch")
