"""What counts of a run's past once it goes on from a checkpoint."""

from policies.run_progress import (
    NOTHING_DONE,
    Restoration,
    RunProgress,
    StagePosition,
    StepFigures,
    next_lineage,
    same_weights,
)
from policies.trajectory import WeightsVersion

PROGRESS = RunProgress(
    version=WeightsVersion(0, 12),
    done={"sft": {}, "evaluation-sft": {"accuracy": 0.5}},
    current=StagePosition(stage="rl", steps=3, cursor=40),
    untold=(StepFigures(kind="step", stage="rl", step=3, figures={"reward_mean": None}),),
)


def test_lines_of_metrics_count_up_to_the_checkpoint_and_are_not_told_twice() -> None:
    assert PROGRESS.counts("fine_tune", "sft", 280)
    assert PROGRESS.counts("step", "rl", 2)
    assert not PROGRESS.counts("step", "rl", 3), "it is told again"
    assert not PROGRESS.counts("step", "rl", 4), "it did not happen"
    assert not PROGRESS.counts("step", "rl-2", 1)
    assert PROGRESS.counts("evaluation", "sft", 0) and not PROGRESS.counts("evaluation", "rl", 0)
    assert PROGRESS.counts("event", "started", 0)
    assert not NOTHING_DONE.counts("fine_tune", "sft", 1)


def test_each_restoration_begins_a_lineage_of_its_own() -> None:
    assert next_lineage([]) == 1
    assert next_lineage([Restoration(lineage=1, checkpoint=""), Restoration(lineage=2, checkpoint="000004")]) == 3


def test_weights_are_the_same_under_the_names_of_lineages_that_began_with_their_checkpoint() -> None:
    past = [
        Restoration(lineage=1, checkpoint=""),
        Restoration(lineage=2, checkpoint="000004"),
        Restoration(lineage=3, checkpoint="000003"),
        Restoration(lineage=4, checkpoint="000004"),
    ]
    assert same_weights(WeightsVersion(1, 7), "000004", past) == ((1, 7), (2, 7), (4, 7))
    assert same_weights(WeightsVersion(0, 6), "000003", past) == ((0, 6), (3, 6))
