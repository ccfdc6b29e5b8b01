"""Calibration plans measurements that fit, knows the work of each, and measures a real engine."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.engines.vllm_options import VllmOptions
from orchestration.calibrate import DECODED, Experiment, calibrate, load_calibration, mixtures, plan, work_of
from orchestration.engine_environment import QUIET_ENGINE
from orchestration.recipe import ModelSettings, ScratchModel
from orchestration.tiny_model import write_scratch_model
from policies.batching_records import BatchingLimits
from policies.cost_fitting import factors


def limits(kv_blocks: int = 320, max_running: int = 64) -> BatchingLimits:
    return BatchingLimits(kv_blocks=kv_blocks, block_tokens=32, max_running=max_running, max_step_tokens=2048)


@settings(max_examples=30, deadline=None)
@given(st.integers(8, 400), st.integers(1, 64), st.integers(0, 1000))
def test_every_planned_measurement_fits_without_preemption(kv_blocks: int, max_running: int, seed: int) -> None:
    bounds = limits(kv_blocks, max_running)
    planned = [*plan(bounds, 256), *mixtures(bounds, 256, random.Random(seed))]
    assert len(planned) >= 15
    for experiment in planned:
        work = work_of(experiment, bounds)  # asserts that nothing was preempted
        assert sum(each.prefill_tokens for each in work) == sum(prompt for prompt, _ in experiment.requests)
        decoded = sum(each.steps * each.decoding for each in work)
        assert decoded == sum(new - 1 for _, new in experiment.requests)


def test_the_plan_tells_all_coefficients_apart() -> None:
    import numpy as np

    table = np.stack([factors(work_of(experiment, limits())) for experiment in plan(limits(), 256)])
    assert np.linalg.matrix_rank(table / table.max(axis=0), tol=1e-3) == 5


def test_work_is_counted_as_one_would_by_hand() -> None:
    (prefill, decode) = work_of(Experiment(requests=((10, 5), (20, 5))), limits())
    assert prefill == (1, 0, 0, 30, 10 * 11 // 2 + 20 * 21 // 2)
    assert decode == (4, 2, 30, 0, 0)


@pytest.mark.slow
async def test_a_real_engine_is_measured_and_the_file_reads_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in QUIET_ENGINE.items():
        monkeypatch.setenv(name, value)
    settings = ModelSettings(scratch=ScratchModel(max_tokens=128), dtype="float32")
    model = write_scratch_model(settings, 0, tmp_path / "model")
    options = VllmOptions(dtype="float32", max_sequence_tokens=128, max_running=8, kv_tokens=1024)
    found = await calibrate(model=model, options=options, threads=1, repeats=1)
    assert (found.limits.kv_blocks, found.limits.block_tokens, found.limits.max_running) == (32, 32, 8)
    assert found.cost.base + found.cost.sequence > 0 and found.fit.median >= 0
    seen = [measurement for measurement in found.measurements if measurement.fitted]
    assert len(seen) == len(plan(found.limits, 128)) and len(found.measurements) > len(seen)
    assert all(measurement.seconds > 0 for measurement in found.measurements)
    # Decoding DECODED tokens takes more than decoding one: the times belong to the work.
    alone = {measurement.experiment.requests: measurement.seconds for measurement in seen}
    prompt = next(requests for requests in alone if len(requests) == 1 and requests[0][1] == DECODED)[0][0]
    assert alone[((prompt, DECODED),)] > alone[((prompt, 1),)]
    path = tmp_path / "calibration.json"
    path.write_text(found.model_dump_json())
    loaded = load_calibration(path)
    assert loaded == found
    assert loaded.options().limits == found.limits and loaded.options().cost == found.cost
