"""Whole runs through the command line, on real Ray, real vLLM and real nsjail, cut to a minute."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from actors.storage.reader import read_archive
from orchestration.metrics import read_metrics

ROOT = Path(__file__).parents[2]
PR_SET_CHILD_SUBREAPER = 36
MINIATURE = [
    "stages.sft.steps=3",
    "stages.sft.batch=8",
    "stages.sft.demonstrations=16",
    "stages.rl-1.steps=1",
    "stages.rl-1.prompts=2",
    "stages.rl-1.group=4",
    "stages.rl-2.steps=1",
    "stages.rl-2.prompts=2",
    "stages.rl-2.group=4",
    "evaluation.count=4",
    "generators.engine.kv_tokens=1024",
]

EACH_STEP = (
    "learner_mismatch_kl learner_engine_mismatch_tail_share learner_ratio_tail_share learner_ratio_max "
    "learner_clip_share learner_gradient_norm learner_entropy tool_error_share_in_correct "
    "tool_error_share_in_kept_positives void_turn_share duplicate_call_share response_tokens_mean "
    "response_tokens_p95 truncated_share zero_signal_share staleness_mean staleness_max tokens_per_s "
    "step_tokens_per_s learner_tokens_per_s tokens_per_s_generator-0 tokens_per_s_generator-1 "
    "learner_peak_memory_bytes peak_memory_bytes_generator-0"
).split()
"""What docs/metrics.md promises; null where there was nothing to measure."""


def command(runs: Path, *arguments: str, settings: list[str] = MINIATURE) -> list[str]:
    overrides = [part for setting in settings for part in ("--set", setting)]
    recipe = str(ROOT / "recipes" / "quickstart.toml")
    return [sys.executable, "-m", "orchestration.cli", "train", recipe, "--runs", str(runs), *overrides, *arguments]


PLANTED = "planted-9d02b6c8e1f74a53"
SECRETS = dict.fromkeys(
    ("RAY_AUTH_TOKEN", "GREENROOM_TOKEN", "HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY"), PLANTED
)
"""Environment variables of a run that nothing it leaves may hold."""


def greenroom(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | SECRETS | {"COLUMNS": "200"}
    return subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=280, env=environment)


@pytest.fixture(scope="module", autouse=True)
def adopting() -> Iterator[None]:
    """What a run leaves behind becomes a child of this process: other work on the machine is not taken for it."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    yield
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) == 0


def machine_state() -> tuple[set[str], int, set[str]]:
    """Processes that descend from this one, mounts, and cgroups of ours."""
    names = {_named(process) for process in psutil.Process().children(recursive=True)} - {""}
    groups = {str(path) for path in Path("/sys/fs/cgroup").glob("**/*greenroom*")}
    return names, len(Path("/proc/self/mounts").read_text().splitlines()), groups


def _named(process: psutil.Process) -> str:
    try:
        return "" if process.status() == psutil.STATUS_ZOMBIE else f"{process.pid} {process.name()}"
    except psutil.NoSuchProcess:
        return ""


def settled(before: tuple[set[str], int, set[str]]) -> tuple[set[str], int, set[str]]:
    """What is there beyond `before`, once processes that were told to end have had five seconds."""
    for _ in range(50):
        after = machine_state()
        more = (after[0] - before[0], after[1] - before[1], after[2] - before[2])
        if not (more[0] or more[2]):
            break
        time.sleep(0.1)
    return more


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str], tuple]:
    runs = tmp_path_factory.mktemp("runs")
    before = machine_state()
    done = greenroom(*command(runs, "--json"))
    assert done.returncode == 0, done.stdout + done.stderr
    return runs / "quickstart", done, settled(before)


def test_an_orphan_would_be_seen() -> None:
    before = machine_state()
    subprocess.run(["setsid", "--fork", "sleep", "300"], check=True)
    (left,) = machine_state()[0] - before[0]
    os.kill(int(left.split()[0]), signal.SIGKILL)
    assert settled(before) == (set(), 0, set())


@pytest.mark.slow
def test_a_run_leaves_its_folder_and_nothing_else(run) -> None:
    folder, _, more = run
    assert {path.name for path in folder.iterdir()} >= {
        "recipe.toml",
        "metrics.jsonl",
        "summary.json",
        "archive",
        "checkpoints",
        "report.html",
        "logs",
    }
    assert more == (set(), 0, set())


@pytest.mark.slow
def test_the_summary_says_what_was_real_and_how_it_went(run) -> None:
    summary = json.loads((run[0] / "summary.json").read_text())
    assert (summary["engine"], summary["sandbox"], summary["finished"]) == ("vllm", "nsjail", True)
    assert [stage["name"] for stage in summary["stages"]] == ["sft", "rl-1", "rl-2"]
    for stage in summary["stages"]:
        assert 0 <= stage["accuracy_low"] <= stage["accuracy"] <= stage["accuracy_high"] <= 1
        assert stage["problems"] == 4 and stage["mean_response_tokens"] > 0
    assert summary["tool_calls"] > 0 and summary["sandbox_failures"] == 0
    assert summary["wall_seconds"] > 0 and summary["peak_in_flight"] >= 1


@pytest.mark.slow
def test_figures_stand_alone_on_standard_output_and_progress_is_shown_all_the_same(run) -> None:
    folder, done, _ = run
    assert json.loads(done.stdout) == json.loads((folder / "summary.json").read_text())
    assert "rl-1 begins, 1 step\n" in done.stderr and "report.html" in done.stderr


@pytest.mark.slow
def test_every_rollout_is_in_the_archive_once(run) -> None:
    trajectories = list(read_archive(run[0] / "archive"))
    ids = [trajectory.id for trajectory in trajectories]
    assert len(ids) == len(set(ids)) == 3 * 4 + 2 * 2 * 8
    assert {trajectory.generator for trajectory in trajectories} == {"generator-0", "generator-1"}
    versions = [span.version.step for t in trajectories for span in t.spans if span.version is not None]
    assert min(versions) == 3, "nothing is sampled before the fine-tuned weights are everywhere"


@pytest.mark.slow
def test_secrets_of_the_environment_are_in_nothing_that_a_run_leaves_or_says(run) -> None:
    folder, done, _ = run
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {"logs", "archive", "checkpoints", "resume"} <= {path.relative_to(folder).parts[0] for path in files}
    assert [path for path in files if PLANTED.encode() in path.read_bytes()] == []
    assert PLANTED not in done.stdout + done.stderr
    assert [t.id for t in read_archive(folder / "archive") if PLANTED in repr(t)] == []  # frames are compressed


@pytest.mark.slow
def test_metrics_tell_of_every_step(run) -> None:
    kinds = [(record["kind"], record["stage"]) for record in read_metrics(run[0] / "metrics.jsonl")]
    assert kinds.count(("fine_tune", "sft")) == 3
    assert kinds.count(("step", "rl-1")) == kinds.count(("step", "rl-2")) == 1
    assert [stage for kind, stage in kinds if kind == "evaluation"] == ["sft", "rl-1", "rl-2"]
    for record in read_metrics(run[0] / "metrics.jsonl"):
        if record["kind"] == "step":
            assert set(EACH_STEP) <= set(record), set(EACH_STEP) - set(record)


@pytest.mark.slow
def test_a_checkpoint_is_a_model_that_transformers_loads(run) -> None:
    folder = run[0] / "checkpoints" / "rl-2"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert model.config.vocab_size == len(tokenizer)


@contextlib.contextmanager
def endless_training(runs: Path, *settings: str) -> Iterator[subprocess.Popen[str]]:
    """A run that is in the middle of its SFT stage; it is gone afterwards, whatever the test made of it."""
    process = subprocess.Popen(
        command(runs, settings=[*MINIATURE, "stages.sft.steps=100000", *settings]),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert any("/100000" in line for line in process.stdout), "the run ended before its first step"
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_a_learner_that_dies_comes_back_and_ctrl_c_stops_everything_and_says_so(tmp_path: Path) -> None:
    before = machine_state()
    with endless_training(tmp_path) as process:
        assert process.stdout is not None
        learner_of(process, tmp_path / "quickstart").kill()
        assert any("going on" in line for line in process.stdout), "the run ended with its learner"
        assert any("/100000" in line for line in process.stdout), "the run ended before it learned again"
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=90)[0]
    assert process.returncode == 130, rest
    assert "interrupted" in rest
    summary = json.loads((tmp_path / "quickstart" / "summary.json").read_text())
    assert (summary["finished"], summary["reason"]) == (False, "interrupted")
    assert settled(before) == (set(), 0, set())


@pytest.mark.slow
def test_a_failure_is_reported_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """Kill a learner that may not come back: the run can't go on, says who was lost, and cleans up."""
    before = machine_state()
    with endless_training(tmp_path, "supervision.restarts=0") as process:
        learner_of(process, tmp_path / "quickstart").kill()
        rest = process.communicate(timeout=90)[0]
    assert process.returncode == 1, rest
    assert "learner" in rest
    summary = json.loads((tmp_path / "quickstart" / "summary.json").read_text())
    assert not summary["finished"] and "learner" in summary["reason"]
    assert settled(before) == (set(), 0, set())


def learner_of(run: subprocess.Popen[str], folder: Path) -> psutil.Process:
    """The process of a run's learner; `folder` is the run's."""
    log = folder / "logs" / "learner.log"
    return next(each for each in psutil.Process(run.pid).children(recursive=True) if _writes_to(each, log))


def _writes_to(process: psutil.Process, log: Path) -> bool:
    try:
        return Path(f"/proc/{process.pid}/fd/1").resolve() == log.resolve()
    except OSError:
        return False


def test_a_dry_run_says_what_would_start_and_starts_nothing(tmp_path: Path) -> None:
    done = greenroom(*command(tmp_path, "--dry-run", "--json"))
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert {need["actor"] for need in plan["needs"]} >= {"generator", "environment", "rollout", "learner", "balancer"}
    assert plan["memory_bytes"] > 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (["sede=1"], "unknown key 'sede'"),
        (["rollouts.count=many"], "rollouts.count = 'many'"),
        (["generators.engine.kv_tokens=100000000000"], "GiB of memory, but"),
    ],
)
def test_what_can_not_run_is_refused_before_anything_starts(
    tmp_path: Path, settings: list[str], complaint: str
) -> None:
    done = greenroom(*command(tmp_path, settings=settings))
    assert done.returncode == 2
    assert complaint in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    text = (ROOT / "recipes" / "quickstart.toml").read_text()
    head, _, tail = text.partition("[model.scratch]")
    recipe.write_text(head.replace('dtype = "float32"', 'path = "/no/such/model"', 1) + tail[tail.index("[prompt]") :])
    done = greenroom(sys.executable, "-m", "orchestration.cli", "train", str(recipe), "--runs", str(tmp_path / "runs"))
    assert done.returncode == 2
    assert "/no/such/model" in done.stderr and "config.json" in done.stderr
