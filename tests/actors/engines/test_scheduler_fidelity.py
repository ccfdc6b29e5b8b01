"""Fidelity without a clock: the simulated engine's scheduler against vLLM's own, step by step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.policies.test_continuous_batching import EventDriven
from tests.support.batching_traces import play, random_trace

TRACES = 200


@pytest.mark.slow
def test_agrees_with_vllm_in_admissions_preemptions_and_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Same sequences running after each step, in the same order, in as many blocks, on tight and on ample KV."""
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")
    from tests.support.vllm_scheduler import VllmScheduler, write_config

    model, compared, preemptions = write_config(tmp_path), 0, 0
    for seed in range(TRACES):
        trace = random_trace(seed)
        theirs = play(trace, VllmScheduler(trace.limits, model))
        ours = play(trace, EventDriven(trace.limits, seed))
        assert ours == {step: theirs.get(step) for step in ours}, f"trace {seed}"
        assert max(ours) == max(theirs), f"trace {seed}"
        compared += len(ours)
        preemptions += ours[max(ours)].preemptions
    assert compared > 20 * TRACES and preemptions > 2 * TRACES, "the traces were too easy to tell schedulers apart"
