"""Programs made from GSM8K's annotations, compared with running them."""

from __future__ import annotations

import contextlib
import io

import pytest

from policies.gsm8k_traces import NoTrace, gsm8k_trace, program_of

EGGS = "Janet sells 16 - 3 - 4 = <<16-3-4=9>>9 duck eggs a day.\nShe makes 9 * 2 = $<<9*2=18>>18 every day.\n#### 18"


def ran(program: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(program, {})
    return out.getvalue().strip()


@pytest.mark.parametrize(
    ("question", "solution", "gold", "program"),
    [
        ("16 eggs, 3 and 4, $2?", EGGS, "18", "a = 16-3-4\nb = a*2\nprint(b)"),
        ("12 an hour, 50 minutes", "<<12/60=0.2>> <<0.2*50=10>>\n#### 10", "10", "a = 12/60\nb = a*50\nprint(b)"),
        ("25, 40, 35?", "<<25+40+35=100>> <<75/100*100=75>>\n#### 75", "75", "a = 25+40+35\nb = 75/100*100\nprint(b)"),
        ("9 and 2", "<<5+4=9>> <<9*2=18>>\n#### 18", "18", "a = 5+4\nb = 9*2\nprint(b)"),
    ],
)
def test_a_program_says_how_the_numbers_hang_together(question: str, solution: str, gold: str, program: str) -> None:
    made, printed = program_of(question, solution, gold)
    assert made == program
    assert ran(made) == printed


@pytest.mark.parametrize(
    "solution",
    [
        "no steps\n#### 3",
        "<<1+1=2>>\n#### 3",
        "<<1/0=1>>\n#### 1",
        "<<__import__('os')=1>>\n#### 1",
        "<<2**9=512>>\n#### 512",
    ],
)
def test_what_is_no_arithmetic_or_misses_the_gold_gives_no_trace(solution: str) -> None:
    with pytest.raises(NoTrace):
        program_of("?", solution, solution.rpartition(" ")[2])


def test_a_trace_calls_reads_and_answers() -> None:
    user, call, result, answer = gsm8k_trace("16 eggs, 3 and 4, $2?", EGGS, "18").messages
    assert (user.role, call.role, result.role, answer.role) == ("user", "assistant", "tool", "assistant")
    assert result.content == "ok\nstdout:\n18" and answer.content.endswith("<answer>\\boxed{18}</answer>")
