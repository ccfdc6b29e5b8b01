"""A whole run is killed by SIGKILL and resumed, on real Ray, real vLLM and real nsjail, cut to seconds.

The full list of phases and random moments: benchmarks/kill_and_resume.py.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from actors.storage.reader import read_archive
from benchmarks.kill_and_resume import Runs, final_weights
from orchestration.metrics import read_metrics

SETTINGS = [
    "name=small",
    "checkpoints.interval_seconds=0",
    "stages.sft.steps=4",
    "stages.sft.batch=8",
    "stages.sft.demonstrations=12",
    "stages.rl-1.steps=2",
    "stages.rl-1.prompts=2",
    "stages.rl-1.group=2",
    "stages.rl-2.steps=1",
    "stages.rl-2.prompts=2",
    "stages.rl-2.group=2",
    "evaluation.count=2",
    "evaluation.limits.max_turn_tokens=32",
    "stages.rl-1.limits.max_turn_tokens=32",
    "stages.rl-2.limits.max_turn_tokens=32",
    "generators.count=1",
    "generators.engine.least_step_seconds=0.0",
    "generators.engine.kv_tokens=1024",
    "environments.count=1",
    "rollouts.count=1",
]


def sampled(run: Path) -> dict[str, list[tuple[bytes, bytes]]]:
    """The tokens and log-probabilities of each rollout, bit for bit (what was played again is there twice)."""
    found: dict[str, list[tuple[bytes, bytes]]] = {}
    for trajectory in read_archive(run / "archive"):
        spans = [(bytes(span.ids), span.logprobs) for span in trajectory.spans if isinstance(span.ids, bytes)]
        assert found.setdefault(trajectory.id, spans) == spans, f"{trajectory.id} was sampled differently"
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_that_is_killed_samples_and_learns_the_same_bits(tmp_path: Path) -> None:
    runs = Runs("deterministic", tmp_path, SETTINGS)
    assert runs.begin(tmp_path / "undisturbed")[0] == 0, (tmp_path / "undisturbed.log").read_text()
    killed = tmp_path / "killed"
    assert runs.begin(killed, "--kill-at", "checkpoint:7")[0] == -signal.SIGKILL
    written = sorted(path.name for path in (killed / "small" / "resume").iterdir())
    assert written == ["000005", "000006", "000007.partial"], "it died in the first RL stage"
    assert runs.resume(killed)[0] == 0, (tmp_path / "killed.log").read_text()

    undisturbed, resumed = tmp_path / "undisturbed" / "small", killed / "small"
    assert final_weights(resumed) == final_weights(undisturbed)
    assert sampled(resumed) == sampled(undisturbed)
    assert len(list(read_archive(resumed / "archive"))) > len(sampled(resumed)), "a step was played twice"
    told = [(line["kind"], line["stage"], line["step"]) for line in read_metrics(resumed / "metrics.jsonl")]
    steps = [each for each in told if each[0] != "event"]
    assert steps == [
        (line["kind"], line["stage"], line["step"])
        for line in read_metrics(undisturbed / "metrics.jsonl")
        if line["kind"] != "event"
    ]
    summary = json.loads((resumed / "summary.json").read_text())
    assert summary["finished"] and summary["times_resumed"] == 1
    assert summary["might_not_repeat"] == []
    assert [stage["name"] for stage in summary["stages"]] == ["sft", "rl-1", "rl-2"]
