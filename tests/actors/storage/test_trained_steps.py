"""The ledger of trained steps: each step once, cut back to what a checkpoint knows."""

from pathlib import Path

import pytest

from actors.storage.trained_steps import FILE, TrainedSteps, batch_digest, cut_trained_steps, read_trained_steps
from policies.batch import TrainingSequence
from policies.grouping import TrainedGroup
from policies.trajectory import WeightsVersion

GROUP = TrainedGroup(group="rl/0/1", problem="p", rollouts=("rl/0/1/0", "rl/0/1/3"), advantages=(1.0, -1.0))


def write(folder: Path, *steps: int, lineage: int = 0) -> TrainedSteps:
    ledger = TrainedSteps(folder)
    for step in steps:
        ledger.append("rl", step, WeightsVersion(lineage, step + 1), [GROUP], ["rl/0/0", GROUP.group], "d")
    ledger.close()
    return ledger


def steps(folder: Path) -> list[int]:
    return [line["step"] for line in read_trained_steps(folder / FILE)]


def test_a_step_is_entered_once_also_by_a_later_writer(tmp_path: Path) -> None:
    write(tmp_path, 0, 1, 1)
    assert write(tmp_path, 1, 2).count == 3
    assert steps(tmp_path) == [0, 1, 2]
    line = read_trained_steps(tmp_path / FILE)[0]
    assert line["taken"] == ["rl/0/0", "rl/0/1"]
    assert TrainedGroup(**line["groups"][0])._replace(rollouts=GROUP.rollouts, advantages=GROUP.advantages) == GROUP


def test_a_torn_line_is_no_step_and_goes_with_the_next_writer(tmp_path: Path) -> None:
    write(tmp_path, 0)
    with (tmp_path / FILE).open("a") as file:
        file.write('{"stage": "rl", "st')
    assert steps(tmp_path) == [0]
    write(tmp_path, 1)
    assert steps(tmp_path) == [0, 1]


def test_what_the_weights_do_not_hold_is_cut_off(tmp_path: Path) -> None:
    write(tmp_path, 0, 1, 2)
    cut_trained_steps(tmp_path, 1)
    assert write(tmp_path, 1, lineage=1).count == 2
    assert [line["version"] for line in read_trained_steps(tmp_path / FILE)] == [[0, 1], [1, 2]]
    with pytest.raises(ValueError, match="has 2 steps, but the checkpoint knows of 5"):
        cut_trained_steps(tmp_path, 5)
    cut_trained_steps(tmp_path / "none", 0)
    with (tmp_path / FILE).open("a") as file:
        file.write("no JSON\n")
    with pytest.raises(ValueError, match=r"trained\.jsonl, line 3 is not JSON"):
        read_trained_steps(tmp_path / FILE)


def test_batches_of_one_digest_are_the_same() -> None:
    one = TrainingSequence(ids=bytes(8), learned=b"\x00\x01", logprobs=bytes(8), advantage=0.5)
    others = [
        one.model_copy(update={"advantage": 0.5000000001}),
        one.model_copy(update={"logprobs": bytes(7) + b"\x01"}),
        one.model_copy(update={"learned": b"\x00\x00"}),
    ]
    digests = [batch_digest(batch) for batch in ([one], *[[other] for other in others], [one, one], [])]
    assert len(set(digests)) == len(digests) and batch_digest([one]) == digests[0]
