"""What a run has to tell is kept until it was fetched, and no longer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from policies.run_progress import NOTHING_DONE, Rewound, StepFigures
from policies.untold import Report, UntoldReports


def step(number: int) -> StepFigures:
    return StepFigures(kind="step", stage="rl", step=number, figures={"reward_mean": 0.5})


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-3, 3)), max_size=30), st.integers(0, 3))
def test_whoever_fetches_in_order_hears_each_report_once_and_none_is_kept_that_was_fetched(
    rounds: list[tuple[int, int]], before: int
) -> None:
    everything = [step(number) for number in range(before)]
    reports, heard, taken = UntoldReports(everything), list[Report](), 0
    for news, late in rounds:
        more = [step(len(everything) + number) for number in range(news)]
        everything += more
        reports.add(*more)
        asked = max(0, taken + min(late, 0))  # a repeat of an earlier question may come late
        reports.were_fetched(below=asked)
        answer, following = reports.since(asked), reports.next
        for number, report in enumerate(answer, following - len(answer)):
            if number >= taken:
                taken = number + 1
                heard.append(report)
        reports.were_fetched(below=taken)
        assert reports.since(0) == () and reports.next == len(everything)
    assert heard == everything[: len(heard)] and len(heard) == taken


def test_of_a_thousand_steps_that_were_fetched_none_is_held() -> None:
    reports = UntoldReports()
    for number in range(1000):
        reports.add(step(number))
        reports.were_fetched(below=number)
        assert len(reports.since(0)) == 1


def test_a_return_to_a_checkpoint_is_told_but_is_no_figure() -> None:
    reports = UntoldReports([step(1)])
    reports.add(Rewound(progress=NOTHING_DONE, place="to its beginning", why="it died"), step(2))
    assert [report.kind for report in reports.since(1)] == ["rewound", "step"]
    assert reports.figures() == (step(1), step(2))
