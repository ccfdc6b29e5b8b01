"""Problems are a pure function of their position, and evaluation never sees a training number."""

import re
from collections import Counter
from dataclasses import replace

import pytest
from pydantic import ValidationError

from policies.arithmetic import FAMILIES, evaluate, is_held_out, make_problem
from policies.curriculum import ProblemOptions, ProblemStream


def numbers(question: str) -> list[str]:
    return re.findall(r"\d+", question)


@pytest.mark.parametrize("held_out", [True, False])
def test_operands_are_held_out_or_not_as_a_whole(held_out: bool) -> None:
    for index in range(300):
        posed = make_problem(0, index, levels=(1, 2), held_out=held_out)
        assert numbers(posed.problem.question)
        assert all(is_held_out(int(number)) == held_out for number in numbers(posed.problem.question))


def test_held_out_ranges_are_a_ninth_of_all_numbers_of_any_length() -> None:
    for digits in (3, 4, 5):
        numbers = range(10 ** (digits - 1), 10**digits)
        assert sum(is_held_out(number) for number in numbers) * 9 == len(numbers)


def test_a_position_always_holds_the_same_problem() -> None:
    stream = ProblemStream(ProblemOptions(), run_seed=5, held_out=False)
    forwards = [stream.problem(index) for index in range(50)]
    assert [stream.problem(index) for index in reversed(range(50))] == forwards[::-1]


def test_runs_differ_in_training_and_agree_in_evaluation() -> None:
    def questions(run_seed: int, held_out: bool) -> list[str]:
        stream = ProblemStream(ProblemOptions(), run_seed=run_seed, held_out=held_out)
        return [stream.problem(index).question for index in range(20)]

    assert questions(0, True) == questions(1, True)
    assert not set(questions(0, False)) & set(questions(1, False))


def test_golds_are_right_and_mistakes_are_wrong() -> None:
    mistaken = 0
    for index in range(300):
        posed = make_problem(1, index, levels=(1, 2), held_out=False)
        assert posed.problem.gold == str(evaluate(posed.expression))
        mistaken += evaluate(posed.mistaken) != evaluate(posed.expression)
    assert mistaken >= 299  # two expressions may agree by chance, hardly ever


def test_every_family_of_a_level_turns_up() -> None:
    families = Counter(make_problem(0, index, levels=(2,), held_out=False).problem.family for index in range(400))
    assert set(families) == {family.name for family in FAMILIES if family.level == 2}


def test_an_unknown_level_is_refused() -> None:
    for levels in ((9,), (1, 9)):
        with pytest.raises(ValueError, match=r"no family .* has level 9; levels are \[1, 2"):
            make_problem(0, 0, levels=levels, held_out=False)
        with pytest.raises(ValidationError, match=r"has level 9; levels are \[1, 2"):
            ProblemOptions(levels=levels)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"expression": "max({a}, {b})"}, "'max({a}, {b})' is more than operands"),
        ({"mistaken": "{a} / {b}"}, "'{a} / {b}' is more than operands"),
        ({"wording": "What is {a} and {c}?"}, "has ['c'], whose `digits` are not given"),
    ],
)
def test_a_family_that_could_not_be_posed_is_named(changed: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        replace(FAMILIES[0], **changed)
