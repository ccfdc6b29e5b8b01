"""One model over two learner processes (gloo): the same gradients, weights and figures as with one learner."""

from __future__ import annotations

import io
import multiprocessing
import os
import traceback
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch._C._distributed_c10d import PrefixStore

from actors.learning.model import named_weights
from actors.learning.sharding import LearnerGroup, Rendezvous, join, whole, whole_weights
from actors.learning.trainer import Kind, NonFiniteStep, Trainer
from actors.learning.trainer_state import restore_stage, restore_weights, take_part_in_writing, write_trainer
from policies.batch import TrainingSequence
from policies.options import MuonOptions, ObjectiveOptions, OptimiserOptions
from policies.packing import pack
from tests.actors.learning.samples import batch, gradients, small_model

RANKS = 2
SECONDS = 300.0


class Case(NamedTuple):
    """Steps to take: the first one's gradients, and the weights after all, are compared."""

    kind: Kind = "reinforce"
    micro: int = 500
    checkpointing: bool = False
    dtype: str = "float32"
    objective: dict[str, Any] = {}  # noqa: RUF012 (never changed)
    muon: bool = False

    def trainer(self, group_in: Any = None) -> Trainer:
        """`group_in`: (store, rank) of the group to join, if any."""
        model = small_model(dtype=self.dtype)
        group = None if group_in is None else LearnerGroup(group_in[0], group_in[1], RANKS, model)
        made = Trainer(model, group=group)
        options = OptimiserOptions(
            learning_rate=1e-3,
            warmup_steps=0,
            micro_batch_tokens=self.micro,
            activation_checkpointing=self.checkpointing,
            muon=MuonOptions() if self.muon else None,
            gradient_clip=1e9,
        )
        made.begin_stage(options, ObjectiveOptions(**self.objective), total_steps=10, temperature=0.9)
        return made

    def batch(self, step: int) -> tuple[TrainingSequence, ...]:
        return batch(step, sampled=self.kind == "reinforce")


CASES = {
    "whole": Case(),
    "cut": Case(micro=30),
    "checkpointed": Case(micro=60, checkpointing=True),
    "group_tokens": Case(micro=60, objective={"denominator": "group_tokens"}),
    "sequence_ratio": Case(micro=60, objective={"name": "gspo"}),
    "entropy": Case(micro=60, objective={"entropy_weight": 0.01}),
    "fine_tune": Case(kind="fine_tune", micro=60),
    "muon": Case(kind="fine_tune", micro=60, muon=True),
    "bfloat16": Case(micro=60, dtype="bfloat16"),
}


RESUMED = ("cut", "muon", "bfloat16")


def play(case: Case, group_in: Any = None) -> dict[str, Any]:
    """What comes of a case: the first step's gradient, the figures of both, the weights."""
    made = case.trainer(group_in)
    first: dict[str, float] = {}
    found = gradients(made, case.kind, case.batch(0), first)
    gradient = {name: whole(value) for name, value in found.items()}
    second = made.step(case.kind, case.batch(1))
    weights = {name: value.float() for name, value in whole_weights(made.model, "float32")}
    return {"gradient": gradient, "figures": [first, second], "weights": weights}


def refused(made: Trainer) -> list[str]:
    """What all ranks raise alike; the group is as good as before."""
    broken = [s.model_copy(update={"advantage": float("nan")}) for s in batch(0)]
    texts = []
    for sequences, error in ((broken, NonFiniteStep), (batch(0, sampled=False), ValueError)):
        with pytest.raises(error) as caught:
            made.step("reinforce", sequences)
        texts.append(str(caught.value))
    assert made.step("reinforce", [])["skipped"] == 1
    assert made.step("reinforce", batch(0)[:1])["skipped"] == 0  # one row: the other rank has none
    return texts


def fail_alone(made: Trainer, rank: int) -> str:
    """Rank 1 fails in the middle of a step, and says so; returns what rank 0 then gets to see."""
    if rank == 1:
        made._group.leave()  # type: ignore[union-attr]
        return "failed"
    with pytest.raises(RuntimeError) as caught:
        made.step("reinforce", batch(0))
    return str(caught.value)


def go_on(case: Case, first: Any, second: Any, rank: int, folder: Path) -> list[dict[str, torch.Tensor]]:
    """The weights after two steps: by one group, and by another that takes up what the first wrote after step one.

    Args:
        first: the store of the group that takes both steps.
        second: the store of the one that goes on.
    """
    made = case.trainer((first, rank))
    made.step(case.kind, case.batch(0))
    if rank == 0:
        write_trainer(made, folder)
    else:
        take_part_in_writing(made)
    made.step(case.kind, case.batch(1))
    found = [dict(whole_weights(made.model, "float32"))]
    torch.distributed.destroy_process_group()
    made = case.trainer((second, rank))
    restore_weights(made, folder)
    restore_stage(made, folder)
    made.step(case.kind, case.batch(1))
    found.append(dict(whole_weights(made.model, "float32")))
    torch.distributed.destroy_process_group()
    return found


def run_rank(rank: int, folder: Path, ports: Any, answers: Any) -> None:
    """One learner process: all cases, one after another, each in a group of its own."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        if rank == 0:
            rendezvous = Rendezvous("127.0.0.1", RANKS)
            ports.put(rendezvous.port)
            store: Any = rendezvous.store
        else:
            store = join("127.0.0.1", ports.get(timeout=SECONDS), RANKS)
        found: dict[str, Any] = {}
        for name, case in CASES.items():
            with_group = (PrefixStore(name, store), rank)
            found[name] = play(case, with_group)
            torch.distributed.destroy_process_group()
        for name in RESUMED:
            (folder / name).mkdir(exist_ok=True)
            stores = [PrefixStore(f"{name}/{part}", store) for part in ("first", "second")]
            found[f"resumed {name}"] = go_on(CASES[name], stores[0], stores[1], rank, folder / name)
        made = Case().trainer((PrefixStore("last", store), rank))
        found["refused"] = refused(made)
        found["alone"] = fail_alone(made, rank)
        packed = io.BytesIO()  # whole: the process may be gone before shared memory is looked at
        torch.save(found, packed)
        answers.put((rank, packed.getvalue(), ""))
    except BaseException:  # to the test, which raises it
        answers.put((rank, b"", traceback.format_exc()))


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the groups write what others go on from."""
    return tmp_path_factory.mktemp("states")


@pytest.fixture(scope="module")
def sharded(states: Path) -> list[dict[str, Any]]:
    """What each rank has found."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # imported once for all ranks
    ports, answers = context.Queue(), context.Queue()
    ranks = [
        context.Process(target=run_rank, args=(rank, states, ports, answers), daemon=True) for rank in range(RANKS)
    ]
    for process in ranks:
        process.start()
    try:
        found = sorted((answers.get(timeout=SECONDS) for _ in ranks), key=lambda answer: answer[0])
    finally:
        for process in ranks:
            process.terminate()
            process.join()
    for rank, _, error in found:
        assert not error, f"rank {rank}: {error}"
    return [torch.load(io.BytesIO(packed), weights_only=False) for _, packed, _ in found]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_two_learners_take_the_step_of_one(sharded, name: str) -> None:
    case = CASES[name]
    alone = play(case)
    loose = case.dtype == "bfloat16"  # rows are cut differently, and each product rounds
    for found in (of_rank[name] for of_rank in sharded):
        assert found["gradient"].keys() == alone["gradient"].keys()
        for key, gradient in alone["gradient"].items():
            scale = float(gradient.abs().max())
            close = 2e-2 if loose else 1e-5
            torch.testing.assert_close(found["gradient"][key], gradient, rtol=0, atol=close * scale, msg=key)
        for mine, theirs in zip(found["figures"], alone["figures"], strict=True):
            assert theirs.pop("micro_batches", 0) <= mine.pop("micro_batches") or case.micro == 500
            assert mine == pytest.approx(theirs, rel=0.1 if loose else 1e-3, abs=1e-2 if loose else 1e-5)
        for key, weight in alone["weights"].items():
            # AdamW moves by its rate, whatever a gradient's size: where one is all noise, so is its sign.
            atol = 2.5e-2 if loose else 4e-3
            torch.testing.assert_close(found["weights"][key], weight.float(), rtol=0, atol=atol, msg=key)
            # Muon iterates in bfloat16: a tenth of its step (0.2 times its rate) is rounding, not another direction.
            mean = 2e-4 if case.muon else 1e-5
            assert loose or float((found["weights"][key] - weight).abs().mean()) < mean, key


@pytest.mark.slow
def test_all_learners_refuse_alike_and_go_on(sharded) -> None:
    first, second = (of_rank["refused"] for of_rank in sharded)
    assert first == second
    assert "weights were left as they are" in first[0] and "no sampled log-probabilities" in first[1]


@pytest.mark.slow
def test_a_learner_whose_peer_has_failed_fails_too_and_does_not_wait(sharded) -> None:
    assert sharded[1]["alone"] == "failed" and sharded[0]["alone"]


def test_rows_are_dealt_out_with_none_lost_and_as_many_to_each() -> None:
    for rows in (pack(batch(1), micro) for micro in (24, 40, 60, 500)):
        shares = []
        for rank in range(3):
            group = object.__new__(LearnerGroup)  # dealing out needs no peers
            group.rank, group.count = rank, 3
            shares.append(group.share(rows))
        assert len({len(share) for share in shares}) == 1
        dealt = np.concatenate([row.sequences for share in shares for row in share if len(row.targets)])
        assert sorted(dealt) == sorted(np.concatenate([row.sequences for row in rows if len(row.targets)]))


def test_of_a_model_that_is_not_sharded_whole_weights_are_its_own() -> None:
    model = small_model()
    assert {name: id(t) for name, t in whole_weights(model, "float32")}.keys() == named_weights(model).keys()
    assert all(torch.equal(t, named_weights(model)[name]) for name, t in whole_weights(model, "float32"))


def test_a_reference_for_the_divergence_is_refused_where_the_model_is_sharded() -> None:
    made = Trainer(small_model())
    made._group = object.__new__(LearnerGroup)
    made._group.count = 2
    with pytest.raises(ValueError, match=r"set learner\.count = 1 or kl_weight = 0"):
        made.begin_stage(OptimiserOptions(), ObjectiveOptions(kl_weight=0.1), 1, 1.0)


@pytest.mark.parametrize("name", RESUMED)
def test_a_group_goes_on_from_what_another_has_written_bit_for_bit(sharded: list[dict[str, Any]], name: str) -> None:
    for rank in sharded:
        undisturbed, resumed = rank[f"resumed {name}"]
        assert undisturbed.keys() == resumed.keys()
        for weight, value in undisturbed.items():
            assert torch.equal(value, resumed[weight]), weight


@pytest.mark.parametrize("name", RESUMED)
def test_one_learner_reads_the_state_that_a_group_has_written(
    sharded: list[dict[str, Any]], name: str, states: Path
) -> None:
    assert len(sharded) == RANKS, "the state has been written"
    folder = states / name
    made = CASES[name].trainer()
    restore_weights(made, folder)
    restore_stage(made, folder)
    assert made.steps == 1
    one = CASES[name].trainer()
    one.step(CASES[name].kind, CASES[name].batch(0))
    tolerance = {"cut": 1e-5, "muon": 2e-3, "bfloat16": 2e-2}[name]
    for master, expected in zip(made.masters.parameters, one.masters.parameters, strict=True):
        torch.testing.assert_close(master, expected, rtol=0, atol=tolerance)
