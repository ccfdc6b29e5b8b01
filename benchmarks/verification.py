"""Answers per second, and how many are judged rightly: ours against calling math-verify directly, on the same cases.

    python -m benchmarks.verification                # some minutes of one core
    python -m benchmarks.verification --rounds 1 --json

Both sides get the same golds and boxed answers: plain integers, as training mostly sees them, and those of
tests/policies/answers/cases.py, whose verdicts are known (they are our tests: that we have none wrong says little),
one at a time, on one core; the sides take turns, so that a slow minute of the machine hits both. Ours is `verify` as a
user calls it, worker process and all. math-verify is parsed and called in this process with its own timers, as its
README shows. What either remembers of a case is part of the measurement: each round asks for every case once.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Callable

from benchmarks.command import add_json, at_least, parser_of, run, say
from policies.answers.notation import normalise
from policies.answers.numbers import parse_number
from tests.policies.answers.cases import CASES

type Case = tuple[str, str, bool]
"""Gold, answer, whether it is right."""
type Judge = Callable[[str, str], bool]


def ours(gold: str, answer: str) -> bool:
    from actors.verification import verify

    return verify(f"<answer>\\boxed{{{answer}}}</answer>", gold).correct


def directly(gold: str, answer: str) -> bool:
    import math_verify

    return math_verify.verify(math_verify.parse(f"\\boxed{{{gold}}}"), math_verify.parse(f"\\boxed{{{answer}}}"))


SIDES: dict[str, Judge] = {"ours": ours, "math_verify": directly}


def measure(name: str, cases: list[Case], rounds: int) -> dict[str, float]:
    """Answers per second of each side, their ratio, and the verdicts that were not the known ones, of the cases that go
    by this name."""
    seconds = dict.fromkeys(SIDES, 0.0)
    wrong = {side: {"false_positives": 0, "false_negatives": 0} for side in SIDES}
    for number in range(rounds):
        for side, judge in SIDES.items():
            start = time.perf_counter()
            verdicts = [judge(gold, answer) for gold, answer, _ in cases]
            took = time.perf_counter() - start
            seconds[side] += took
            say(f"{name}, round {number + 1} of {rounds}, {side}: {len(cases)} answers in {took:.1f} s")
            if number == 0:
                pairs = [(verdict, right) for verdict, (_, _, right) in zip(verdicts, cases, strict=True)]
                wrong[side]["false_positives"] = sum(verdict and not right for verdict, right in pairs)
                wrong[side]["false_negatives"] = sum(right and not verdict for verdict, right in pairs)
    per_s = {side: rounds * len(cases) / seconds[side] for side in SIDES}
    return {
        "cases": len(cases),
        "ours_per_s": per_s["ours"],
        "math_verify_per_s": per_s["math_verify"],
        "ratio": per_s["ours"] / per_s["math_verify"],
        **{f"{side}_{kind}": count for side, counts in wrong.items() for kind, count in counts.items()},
    }


def is_integer(gold: str) -> bool:
    number = parse_number(normalise(gold))
    return number is not None and number.value.denominator == 1 and not number.percent


def arguments() -> argparse.ArgumentParser:
    parser = parser_of("verification", __doc__)
    parser.add_argument("--rounds", type=at_least(1), default=3, help="in each of which both sides judge every case")
    add_json(parser)
    return parser


def main() -> None:
    from actors.verification import close_verifier

    options = arguments().parse_args()
    logging.disable(logging.WARNING)  # math-verify reports each expression that it can't read
    cases = [(case.gold, answer, right) for case in CASES for answer, right in case.verdicts()]
    for judge in SIDES.values():  # workers started, modules imported, caches of the parsers warm
        judge("2\\sqrt{3}", "\\sqrt{12}")
    plain = [(str(gold), str(gold + error), not error) for gold in range(100) for error in (0, 1)]
    kinds = {
        "plain_integers": plain,
        "integer_golds": [case for case in cases if is_integer(case[0])],
        "other_golds": [case for case in cases if not is_integer(case[0])],
    }
    try:
        figures = {name: measure(name, of_kind, options.rounds) for name, of_kind in kinds.items()}
    finally:
        close_verifier()
    if options.json:
        print(json.dumps(figures))
        return
    for name, each in figures.items():
        print(
            f"{name}: {each['cases']} cases; ours {each['ours_per_s']:,.0f} answers/s, math-verify "
            f"{each['math_verify_per_s']:,.0f} answers/s, ratio {each['ratio']:.1f}"
        )
        for side in SIDES:
            print(f"  {side}: {each[f'{side}_false_positives']} false positives, ", end="")
            print(f"{each[f'{side}_false_negatives']} false negatives")


if __name__ == "__main__":
    run(main)
