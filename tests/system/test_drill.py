"""A small drill on real Ray, real vLLM and real nsjail: whoever is killed, the run comes to its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestration.metrics import read_metrics

ROOT = Path(__file__).parents[2]
SETTINGS = [
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
    "evaluation.count=4",
    "generators.count=1",
    "generators.engine.kv_tokens=1024",
    "environments.count=1",
    "environments.workers=1",
    "environments.preloaded=[]",
]
VICTIMS = {"archive": 0.5, "balancer": 1.0, "rollout-0": 1.5, "environment-0": 2.0, "learner": 2.5}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_whose_actors_are_killed_trains_each_group_once(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    faults = [{"kind": "kill", "at": at, "actor": name} for name, at in VICTIMS.items()]
    plan.write_text(json.dumps({"faults": faults}))
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    arguments = ["drill", "recipes/drill.toml", "--plan", str(plan), "--runs", str(tmp_path), "--json", *settings]
    done = subprocess.run(
        [sys.executable, "-m", "orchestration.cli", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=580,
        env=os.environ | {"COLUMNS": "200"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["hit"] == {f"kill actor of {name}": 1 for name in VICTIMS}
    assert all(strike["confirmed"] and strike["outcome"] == "recovered" for strike in report["strikes"])
    assert len({strike["pid"] for strike in report["strikes"]}) == len(VICTIMS)
    assert report["deaths"] == dict.fromkeys(VICTIMS, 1)
    assert report["passed"] and report["rewinds"] and not report["faults"]
    told = [(line["kind"], line["stage"], line["step"]) for line in read_metrics(tmp_path / "drill" / "metrics.jsonl")]
    steps = [each for each in told if each[0] != "event"]
    assert len(steps) == len(set(steps)), "what did not happen was taken back"
    assert [each for each in steps if each[0] == "step"] == [
        ("step", "rl-1", 1),
        ("step", "rl-1", 2),
        ("step", "rl-2", 1),
    ]
