"""Demonstrations say what rollouts will say, and only the assistant's words are learned."""

import random

from env.tool_call import PYTHON_TOOL, ToolResult
from policies import tokens
from policies.arithmetic import make_problem
from policies.chat_format import ChatFormat
from policies.demonstrations import HabitOptions, expected_result, sequence_from_script, write_script
from policies.dialogue import Dialogue, DialogueLimits, Execute, Finished
from policies.trajectory import WeightsVersion

FAILED = ToolResult(id="x", status="error", stderr="NameError: name 'show' is not defined\n", exit_code=1)
HABITS = HabitOptions(mistakes=1.0, failing_calls=0.5)


def test_only_assistant_tokens_are_learned(chat: ChatFormat) -> None:
    posed = make_problem(0, 3, levels=(1, 2), held_out=False)
    script = write_script(posed, HabitOptions(failing_calls=1.0), random.Random(0), tools=(PYTHON_TOOL,))
    sequence = sequence_from_script(script, (FAILED, FAILED), chat, 200)
    ids = tokens.unpack_ids(sequence.ids)
    assert len(sequence.learned) == len(ids)
    learned = chat.decode([token for token, flag in zip(ids, sequence.learned, strict=True) if flag])
    other = chat.decode([token for token, flag in zip(ids, sequence.learned, strict=True) if not flag])
    assert posed.problem.question in other and "NameError" in other and "<tool_response>" in other
    assert posed.problem.question not in learned and "NameError" not in learned and "<|im_start|>" not in learned
    assert learned.count("<tool_call>") == 2 and learned.count("<answer>") == 1
    assert learned.count("<|im_end|>") == 3


def test_a_demonstration_is_token_for_token_a_dialogue(chat: ChatFormat) -> None:
    """Replay each demonstration's own words through the dialogue: the histories must be the same."""
    for index in range(40):
        posed = make_problem(0, index, levels=(1, 2), held_out=False)
        script = write_script(posed, HABITS, random.Random(index), tools=(PYTHON_TOOL,))
        limits = DialogueLimits(max_tokens=2000, max_turn_tokens=500, tool_response_characters=200)
        dialogue = Dialogue(id="d", chat=chat, problem=posed.problem, limits=limits)
        results: list[ToolResult] = []
        for position, text in enumerate(script.texts):
            from policies.demonstrations import call_text

            ran = position < len(script.programs)
            ids = chat.model_turn(text + (call_text(script.programs[position]) if ran else ""))
            dialogue.sampled(tokens.pack_ids(ids), tokens.pack_floats([0.0] * len(ids)), WeightsVersion(0, 0))
            action = dialogue.next_action()
            if isinstance(action, Execute):
                last = position == len(script.programs) - 1
                result = expected_result(action.calls[0].code, script.expression) if last else FAILED
                results.append(result.model_copy(update={"id": action.calls[0].id}))
                assert action.calls[0].code == script.programs[position]
                dialogue.executed([results[-1]])
        finished = dialogue.next_action()
        assert isinstance(finished, Finished) and finished.finish == "answered"
        assert finished.verdict.correct == (script.expression == posed.expression)
        assert sequence_from_script(script, tuple(results), chat, 200).ids == dialogue.ids_from(0)


def test_habits_are_as_frequent_as_asked(chat: ChatFormat) -> None:
    rng = random.Random(0)
    posed = [make_problem(0, index, levels=(1, 2), held_out=False) for index in range(1500)]
    scripts = [write_script(each, HABITS, rng, tools=(PYTHON_TOOL,)) for each in posed]
    failing = sum(len(script.programs) == 2 for script in scripts) / len(scripts)
    mistaken = sum(s.expression != p.expression for s, p in zip(scripts, posed, strict=True)) / len(scripts)
    expected = sum(each.mistaken_share for each in posed) / len(posed)
    assert abs(failing - 0.5) < 0.05
    assert abs(mistaken - expected) < 0.05


def test_without_tools_the_answer_is_given_at_once(chat: ChatFormat) -> None:
    script = write_script(make_problem(0, 0, levels=(1,), held_out=False), HABITS, random.Random(0), tools=())
    assert script.programs == () and len(script.texts) == 1
