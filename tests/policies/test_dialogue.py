"""A dialogue is a pure state machine over tokens that only grow."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env.tool_call import PYTHON_TOOL, ToolResult
from policies import tokens
from policies.chat_format import ChatFormat
from policies.dialogue import TOOLS_OFF, Dialogue, DialogueLimits, Execute, Finished, Sample, Verify
from policies.trajectory import Problem, Verdict, WeightsVersion

VERSION = WeightsVersion(0, 3)
PROBLEM = Problem(id="p", question="What is 12 times 12?", gold="144")


def call(code: str, **extra: object) -> str:
    arguments = {"code": code, "input": "", **extra}
    return f"<tool_call>\n{json.dumps({'name': PYTHON_TOOL, 'arguments': arguments})}\n</tool_call>"


def begin(chat: ChatFormat, problem: Problem = PROBLEM, **limits: object) -> Dialogue:
    values = {"max_tokens": 2000, "max_turns": 4, "max_turn_tokens": 1000} | limits
    return Dialogue(id="r", chat=chat, problem=problem, limits=DialogueLimits.model_validate(values))


def say(dialogue: Dialogue, chat: ChatFormat, text: str, *, ends: bool = True) -> None:
    ids = chat.model_turn(text)
    ids = ids if ends else ids[:-1]
    dialogue.sampled(tokens.pack_ids(ids), tokens.pack_floats([-0.5] * len(ids)), VERSION)


def test_an_answer_without_a_call_ends_the_dialogue(chat: ChatFormat) -> None:
    dialogue = begin(chat)
    assert dialogue.next_action() == Sample(turn=0, max_tokens=1000)
    say(dialogue, chat, "easy</reason><answer>\\boxed{144}</answer>")
    match dialogue.next_action():
        case Finished(finish, verdict):
            assert (finish, verdict.correct, verdict.reason) == ("answered", True, "right")
        case other:
            pytest.fail(f"expected the end, got {other}")


def test_results_of_calls_come_back_in_a_tool_span_before_the_next_turn(chat: ChatFormat) -> None:
    dialogue = begin(chat)
    say(dialogue, chat, call("print(1)") + call("print(2)"))
    action = dialogue.next_action()
    assert isinstance(action, Execute)
    assert [ran.code for ran in action.calls] == ["print(1)", "print(2)"]
    results = [
        ToolResult(id=ran.id, status="success", stdout=f"out-{index}\n") for index, ran in enumerate(action.calls)
    ]
    dialogue.executed(results)
    assert [span.kind for span in dialogue.spans] == ["prompt", "model", "tool"]
    shown = chat.decode(tokens.unpack_ids(dialogue.spans[-1].ids))
    assert shown.index("out-0") < shown.index("out-1")
    assert shown.endswith("<|im_start|>assistant\n<reason>")
    assert dialogue.next_action() == Sample(turn=1, max_tokens=1000)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("<tool_call>{not json}</tool_call>", "not valid JSON"),
        ('<tool_call>{"name": "rm", "arguments": {}}</tool_call>', "unknown tool 'rm'"),
        ("<tool_call>[1]</tool_call>", "must be a JSON object"),
        (call("print(1)", extra=1), "takes two strings"),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", "not valid JSON"),
        ("<tool_call>{}", "not closed"),
        ('<tool_call>{"name": ["x"], "arguments": {}}</tool_call>', "unknown tool"),
        (call("print('\ud800')"), "lone surrogates"),
    ],
)
def test_a_bad_call_is_answered_and_the_dialogue_goes_on(chat: ChatFormat, text: str, complaint: str) -> None:
    dialogue = begin(chat, max_tokens=500_000, max_turn_tokens=400_000, tool_response_characters=500)
    say(dialogue, chat, text)
    assert isinstance(dialogue.next_action(), Sample)
    assert [record.result.status for record in dialogue.calls] == ["invalid_call"]
    assert complaint in dialogue.calls[0].result.reason
    assert dialogue.calls[0].result.is_tool_error


def test_a_good_call_beside_a_bad_one_still_runs(chat: ChatFormat) -> None:
    dialogue = begin(chat)
    say(dialogue, chat, "<tool_call>oops</tool_call>" + call("print(7)"))
    action = dialogue.next_action()
    assert isinstance(action, Execute) and [ran.code for ran in action.calls] == ["print(7)"]
    dialogue.executed([ToolResult(id=action.calls[0].id, status="success", stdout="7\n")])
    assert [record.result.status for record in dialogue.calls] == ["invalid_call", "success"]


def test_a_turn_that_was_cut_off_earns_nothing_even_with_the_right_answer(chat: ChatFormat) -> None:
    dialogue = begin(chat)
    say(dialogue, chat, "<answer>\\boxed{144}</answer> and", ends=False)
    finished = dialogue.next_action()
    assert isinstance(finished, Finished)
    assert (finished.finish, finished.verdict.correct) == ("length", False)


def test_the_turn_budget_ends_a_dialogue_that_only_calls(chat: ChatFormat) -> None:
    dialogue = begin(chat, max_turns=2)
    for _ in range(2):
        say(dialogue, chat, call("1"))
        action = dialogue.next_action()
        assert isinstance(action, Execute)
        dialogue.executed([ToolResult(id=action.calls[0].id, status="success")])
    finished = dialogue.next_action()
    assert isinstance(finished, Finished) and finished.finish == "turns"


def test_a_tool_response_that_does_not_fit_ends_the_dialogue(chat: ChatFormat) -> None:
    dialogue = begin(chat, max_tokens=150, tool_response_characters=400)
    say(dialogue, chat, call("1"))
    action = dialogue.next_action()
    assert isinstance(action, Execute)
    dialogue.executed([ToolResult(id=action.calls[0].id, status="success", stdout="9" * 400)])
    finished = dialogue.next_action()
    assert isinstance(finished, Finished) and finished.finish == "length"


def test_a_sandbox_failure_voids_the_rollout(chat: ChatFormat) -> None:
    dialogue = begin(chat)
    say(dialogue, chat, call("1"))
    action = dialogue.next_action()
    assert isinstance(action, Execute)
    dialogue.executed([ToolResult(id=action.calls[0].id, status="sandbox_failure")])
    finished = dialogue.next_action()
    assert isinstance(finished, Finished) and finished.finish == "sandbox_failure"


def test_without_tools_no_call_runs(chat: ChatFormat) -> None:
    dialogue = begin(chat, tools=())
    say(dialogue, chat, call("print(144)"))
    assert isinstance(dialogue.next_action(), Sample)
    assert dialogue.calls[0].result.reason == TOOLS_OFF


def test_an_answer_that_a_tool_printed_is_not_the_models(chat: ChatFormat) -> None:
    dialogue = begin(chat)
    say(dialogue, chat, call("print('x')"))
    action = dialogue.next_action()
    assert isinstance(action, Execute)
    printed = ToolResult(id=action.calls[0].id, status="success", stdout="<answer>\\boxed{144}</answer>\n")
    dialogue.executed([printed])
    say(dialogue, chat, "I give up")
    finished = dialogue.next_action()
    assert isinstance(finished, Finished)
    assert (finished.verdict.correct, finished.verdict.reason) == (False, "no_answer")


def test_an_answer_that_takes_mathematics_is_verified_elsewhere(chat: ChatFormat) -> None:
    dialogue = begin(chat, Problem(id="p", question="Solve x < 3.", gold="(-\\infty, 3)"))
    say(dialogue, chat, "easy</reason><answer>\\boxed{x < 3}</answer>")
    assert dialogue.next_action() == dialogue.next_action() == Verify("x < 3", "(-\\infty, 3)")
    verdict = Verdict(correct=True, extracted="x < 3", reason="right")
    dialogue.verified(verdict)
    assert dialogue.next_action() == Finished("answered", verdict)


def test_a_dialogue_that_did_not_end_in_an_answer_needs_no_verification(chat: ChatFormat) -> None:
    dialogue = begin(chat, Problem(id="p", question="Solve x < 3.", gold="(-\\infty, 3)"))
    say(dialogue, chat, "<answer>\\boxed{x < 3}</answer> and", ends=False)
    finished = dialogue.next_action()
    assert isinstance(finished, Finished)
    assert (finished.finish, finished.verdict.reason) == ("length", "no_answer")


def test_a_prompt_that_leaves_no_room_is_refused_with_the_numbers(chat: ChatFormat) -> None:
    with pytest.raises(ValueError, match=r"its prompt has \d+ tokens, but max_tokens is 5"):
        begin(chat, max_tokens=5)


@given(
    texts=st.lists(st.sampled_from(["thinking", call("1"), "<tool_call>?", "<answer>\\boxed{1}</answer>"]), max_size=6)
)
def test_histories_only_grow_and_never_outgrow_the_limit(chat: ChatFormat, texts: list[str]) -> None:
    dialogue = begin(chat, max_tokens=260, tool_response_characters=40)
    history = dialogue.ids_from(0)
    for text in texts:
        action = dialogue.next_action()
        if isinstance(action, Finished):
            break
        if isinstance(action, Execute):
            dialogue.executed([ToolResult(id=ran.id, status="error", stderr="Oh") for ran in action.calls])
            continue
        assert isinstance(action, Sample), "the gold is an integer: nothing has to be compared"
        ids = chat.model_turn(text)[: action.max_tokens]
        dialogue.sampled(tokens.pack_ids(ids), tokens.pack_floats([0.0] * len(ids)), VERSION)
        assert dialogue.ids_from(0).startswith(history)
        history = dialogue.ids_from(0)
        assert dialogue.ids_from(3) == history[12:]
        assert tokens.count(history) == dialogue.length <= 260
