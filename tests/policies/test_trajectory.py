"""Records refuse what can't have happened, and survive the wire unchanged."""

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from env.tool_call import ToolCall, ToolResult
from policies import tokens
from policies.batch import sequence_from_trajectory
from policies.scripted import CountedTokens
from policies.trajectory import (
    CallRecord,
    Problem,
    Span,
    Trajectory,
    Verdict,
    VersionRun,
    WeightsVersion,
    turn_spans,
    version_runs,
    whole_turns,
)

PROMPT = Span(kind="prompt", ids=tokens.pack_ids([1, 2, 3]))
MODEL = Span(
    kind="model", ids=tokens.pack_ids([4, 5]), logprobs=tokens.pack_floats([-0.5, -1.0]), version=WeightsVersion(0, 1)
)
TOOL = Span(kind="tool", ids=tokens.pack_ids([6]))


def trajectory(*spans: Span, **fields: object) -> Trajectory:
    values = {
        "id": "t",
        "group": "g",
        "sample": 0,
        "stage": "rl",
        "step": 0,
        "problem": Problem(id="p", question="?", gold="1"),
        "spans": spans,
        "turns": 1,
        "answer_tags": 1,
        "finish": "answered",
        "verdict": Verdict(correct=True, extracted="1", reason="right"),
        "reward": 1.0,
        "generator": "generator-0",
    }
    return Trajectory.model_validate(values | fields)


@given(st.lists(st.integers(0, 2**31 - 1)), st.lists(st.floats(width=32, allow_nan=False)))
def test_packing_loses_nothing(ids: list[int], values: list[float]) -> None:
    assert tokens.unpack_ids(tokens.pack_ids(ids)) == ids
    assert tokens.unpack_floats(tokens.pack_floats(values)).tolist() == values
    assert tokens.count(tokens.pack_ids(ids)) == len(ids)


def test_a_model_span_needs_a_log_probability_for_each_token() -> None:
    with pytest.raises(ValidationError, match="2 tokens has 1 log-probabilities"):
        Span(
            kind="model", ids=tokens.pack_ids([1, 2]), logprobs=tokens.pack_floats([0.0]), version=WeightsVersion(0, 0)
        )


@pytest.mark.parametrize("kind", ["prompt", "tool"])
def test_tokens_that_were_not_sampled_have_no_log_probabilities(kind: str) -> None:
    with pytest.raises(ValidationError, match="was not sampled"):
        Span(kind=kind, ids=tokens.pack_ids([1]), logprobs=tokens.pack_floats([0.0]))  # type: ignore[arg-type]


def test_a_trajectory_begins_with_its_prompt() -> None:
    with pytest.raises(ValidationError, match="first span is its prompt"):
        trajectory(MODEL)


def test_only_model_tokens_are_learned() -> None:
    sequence = sequence_from_trajectory(trajectory(PROMPT, MODEL, TOOL, MODEL), advantage=-0.5, group=3)
    assert tokens.unpack_ids(sequence.ids) == [1, 2, 3, 4, 5, 6, 4, 5]
    assert list(sequence.learned) == [0, 0, 0, 1, 1, 0, 1, 1]
    assert tokens.unpack_floats(sequence.logprobs).tolist() == [0, 0, 0, -0.5, -1.0, 0, -0.5, -1.0]
    assert (sequence.length, sequence.learned_tokens, sequence.advantage, sequence.group) == (8, 4, -0.5, 3)


def test_lengths_count_what_they_say() -> None:
    whole = trajectory(PROMPT, MODEL, TOOL, MODEL)
    assert (whole.response_tokens, whole.model_tokens) == (5, 4)


def test_a_trajectory_survives_msgpack() -> None:
    whole = trajectory(PROMPT, MODEL, TOOL)
    packed = msgpack.packb(whole.__dict__, default=lambda record: record.__dict__)
    assert Trajectory.model_validate(msgpack.unpackb(packed)) == whole


def test_a_void_turn_is_one_that_the_model_ended_with_neither_call_nor_answer() -> None:
    nothing = Verdict(correct=False, reason="no_answer")
    assert trajectory(PROMPT, MODEL, verdict=nothing, answer_tags=0).has_void_turn
    assert not trajectory(PROMPT, MODEL).has_void_turn
    for finish in ("length", "turns"):  # cut off: nobody knows what the turn would have held
        cut = trajectory(PROMPT, MODEL, verdict=nothing, finish=finish)
        assert cut.truncated and not cut.has_void_turn


def test_duplicate_calls_repeat_code_and_input_of_their_own_rollout() -> None:
    def call(code: str, text: str = "") -> CallRecord:
        asked = ToolCall(id=f"{code}{text}", code=code, input=text)
        return CallRecord(turn=0, call=asked, result=ToolResult(id=asked.id, status="success"))

    calls = (call("a"), call("b"), call("a"), call("a", "1"), call("a"))
    assert trajectory(PROMPT, MODEL, calls=calls).duplicate_calls == 2
    assert trajectory(PROMPT, MODEL).duplicate_calls == 0


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_a_turn_is_cut_where_new_weights_came_and_put_together_again(sizes: list[int]) -> None:
    runs = [VersionRun(WeightsVersion(0, step), size) for step, size in enumerate(sizes)]
    ids, logprobs = tokens.pack_ids(range(sum(sizes))), tokens.pack_floats([-0.5 * n for n in range(sum(sizes))])
    counted = CountedTokens("p", 3, "s", turns=1, length=3 + sum(sizes), skip=3)
    *earlier, last = runs
    for whole, known in ((ids, logprobs), (counted, b"")):
        spans = turn_spans(whole, known, last.version, earlier)
        assert list(version_runs(spans)) == runs
        assert tokens.joined([span.ids for span in spans]) == whole
        assert b"".join(span.logprobs for span in spans) == known
        turns = whole_turns([PROMPT, *spans, TOOL, MODEL])
        assert turns == [(PROMPT,), tuple(spans), (TOOL,), (MODEL,)]
