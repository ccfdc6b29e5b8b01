"""Whole GRPO steps on this machine: greenroom against TRL's GRPOTrainer, the same work, one after the other in one run.

    greenroom data smollm2 models/smollm2-135m               # the model, once (89 MB)
    python -m benchmarks.vs_trl                              # about ten minutes on two idle cores
    python -m benchmarks.vs_trl --problems gsm8k-train.jsonl --rounds 3 --json

TRL comes from PyPI into an environment of its own (`--environment`, made at the first run); nothing of it gets into
ours. Both sides train the same model folder on the same prompts, with the same group size, completion length, dtype,
objective (token-level GRPO, no divergence term), optimiser, tokens per pass, and number of threads. The reward is a
coin on both, so that groups carry signal whatever a small model says. Ours is `greenroom train` with a recipe: Ray, the
generator with vLLM, the learner, weights published after each step; nothing of it is left out.

A step's seconds are wall-clock time from its predecessor's end to its own, whatever happens meanwhile. Each run's first
step warms up and is not counted. Tokens are those trained on: sampled, in groups that carry signal. Rounds alternate
between the sides, so that a slow minute of the machine hits both.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import tomli_w

from benchmarks.command import GREENROOM, ROOT, Failed, add_json, at_least, output_of, parser_of, run, say
from benchmarks.vs_trl_job import (
    STAGE,
    Dtype,
    Job,
    as_text,
    fixed_length_model,
    problem_options,
    prompts_in_order,
    recipe_for,
)
from orchestration.side_by_side import usable_cores
from orchestration.smollm2 import UV_OF_SETUP
from policies.curriculum import ProblemOptions

if TYPE_CHECKING:
    from benchmarks.roofline import Machine, Roofline, Transformer

DRIVER = Path(__file__).with_name("trl_grpo.py")
TRL = "trl==1.16.0"
WARM_UP_STEPS = 1
SIDE_DEADLINE_S = 3600.0


class StepFigures(NamedTuple):
    """One step of a side, in seconds."""

    seconds: float
    generation: float
    learning: float
    tokens: float
    """Trained on."""


class SideFigures(NamedTuple):
    """Means over the counted steps of all rounds."""

    tokens_per_s: float
    step_seconds: float
    generation_seconds: float
    learning_seconds: float
    rest_seconds: float
    tokens_per_step: float
    steps: int


def side_figures(steps: Sequence[StepFigures]) -> SideFigures:
    seconds, generation, learning, tokens = (sum(column) / len(steps) for column in zip(*steps, strict=True))
    return SideFigures(
        tokens / seconds, seconds, generation, learning, seconds - generation - learning, tokens, len(steps)
    )


def trl_python(environment: Path) -> Path:
    """The Python of an environment that has TRL, with our torch and transformers; made if it isn't there.

    Raises `Failed` where uv is missing, or a package can't be had.
    """
    python, made = environment / "bin" / "python", environment / "vs-trl-packages.txt"
    packages = [TRL, *(f"{name}=={importlib.metadata.version(name)}" for name in ("torch", "transformers"))]
    if made.is_file() and made.read_text().split() == packages:
        return python
    uv = shutil.which("uv") or shutil.which(str(ROOT / UV_OF_SETUP))
    if uv is None:
        raise Failed("no uv on the PATH or in .setup, which is to install TRL; run make setup first")
    say(f"{TRL} is installed into {environment}")
    output_of([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(environment)])
    output_of([uv, "pip", "install", "--quiet", "--python", str(python), *packages])
    made.write_text("\n".join(packages))
    return python


def train_with_trl(job: Job, python: Path, prompts: list[list[int]]) -> list[StepFigures]:
    """Raises `Failed` if TRL saw other tokens than we do."""
    shutil.rmtree(job.folder, ignore_errors=True)
    Path(job.folder).mkdir(parents=True)
    path = Path(job.folder) / "job.json"
    path.write_text(json.dumps(asdict(job)))
    answer = json.loads(_last_line([str(python), str(DRIVER), str(path)], Path(job.folder) / "trl.log"))
    expected = [len(prompt) for prompt in prompts]
    if answer["prompt_tokens"] != expected:
        raise Failed(f"TRL's prompts have other lengths than ours: {answer['prompt_tokens']}, not {expected}")
    return [StepFigures(**step) for step in answer["steps"]][WARM_UP_STEPS:]


def train_with_greenroom(job: Job, problems: ProblemOptions, longest_prompt: int) -> list[StepFigures]:
    """`greenroom train`; figures are read from its metrics."""
    shutil.rmtree(job.folder, ignore_errors=True)
    recipe = Path(job.folder) / "recipe.toml"
    recipe.parent.mkdir(parents=True)
    recipe.write_text(tomli_w.dumps(recipe_for(job, problems, longest_prompt)))
    command = [*GREENROOM, "train", str(recipe), "--runs", job.folder, "--json"]
    folder = Path(job.folder) / json.loads(_last_line(command, Path(job.folder) / "greenroom.log"))["name"]
    return steps_of_run(folder / "metrics.jsonl")


def steps_of_run(metrics: Path) -> list[StepFigures]:
    """The counted steps of one of our runs."""
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps = [record for record in records if record["kind"] == "step" and record["stage"] == STAGE]
    return [
        StepFigures(
            seconds=step["seconds"] - before["seconds"],
            generation=step["time_rollout_s"],
            learning=step["learner_learn_seconds"],
            tokens=step["learner_learned_tokens"],
        )
        for before, step in zip(steps[WARM_UP_STEPS - 1 :], steps[WARM_UP_STEPS:], strict=False)
    ]


def _last_line(command: Sequence[str], log: Path) -> str:
    """Of what the command prints; the rest of its output goes to `log`. Raises `Failed` if it fails."""
    with log.open("w") as errors:
        return output_of(command, errors, SIDE_DEADLINE_S).splitlines()[-1]


def model_shape(folder: Path) -> Transformer:
    from transformers import AutoConfig

    from benchmarks.roofline import Transformer

    config = AutoConfig.from_pretrained(folder)
    return Transformer(
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_size=config.head_dim,
        intermediate=config.intermediate_size,
        vocabulary=config.vocab_size,
    )


def least_seconds(job: Job, prompts: list[list[int]], machine: Machine) -> Roofline:
    """Of a counted step, on average."""
    import torch

    from benchmarks.roofline import Roofline, Step, roofline

    model, each = model_shape(Path(job.model)), job.prompts_per_step
    item = torch.empty(0, dtype=getattr(torch, job.dtype)).element_size()
    least = [
        roofline(
            model,
            Step([len(prompt) for prompt in prompts[first : first + each]], job.group, job.completion_tokens),
            machine,
            item,
        )
        for first in range(WARM_UP_STEPS * each, len(prompts), each)
    ]
    return Roofline(*(sum(column) / len(least) for column in zip(*least, strict=True)))


def compare(
    job: Job, sides: dict[str, Callable[[], list[StepFigures]]], rounds: int, prompts: list[list[int]]
) -> dict[str, Any]:
    """All figures. `sides`: what runs each of them once and returns its counted steps."""
    import torch

    from benchmarks.roofline import measure_machine

    steps: dict[str, list[StepFigures]] = {name: [] for name in sides}
    for number in range(rounds):
        for name, train in sides.items():
            steps[name] += train()
            say(f"round {number + 1} of {rounds}: {name} has trained")
    machine = measure_machine(getattr(torch, job.dtype), job.threads)
    figures = {name: side_figures(of_side) for name, of_side in steps.items()}
    least = least_seconds(job, prompts, machine)
    return {
        "tokens_per_s_ratio": figures["greenroom"].tokens_per_s / figures["trl"].tokens_per_s,
        **{name: of_side._asdict() for name, of_side in figures.items()},
        "roofline": {
            "generation_seconds": least.generation,
            "learning_seconds": least.learning,
            "tokens_per_s": job.prompts_per_step * job.group * job.completion_tokens / least.seconds,
            "flops_per_s": machine.flops_per_s,
            "bytes_per_s": machine.bytes_per_s,
        },
        "job": asdict(job) | {"prompts": len(prompts), "mean_prompt_tokens": sum(map(len, prompts)) / len(prompts)},
        "rounds": rounds,
    }


def as_table(figures: dict[str, Any]) -> str:
    """Markdown."""
    lines = [
        "| | tokens/s | step | generation | learning | the rest |",
        "|---|---|---|---|---|---|",
    ]
    for name in ("greenroom", "trl"):
        side = figures[name]
        parts = " | ".join(f"{side[f'{part}_seconds']:.2f} s" for part in ("step", "generation", "learning", "rest"))
        lines.append(f"| {name} | {side['tokens_per_s']:.0f} | {parts} |")
    least = figures["roofline"]
    seconds = least["generation_seconds"] + least["learning_seconds"]
    lines += [
        f"| roofline | {least['tokens_per_s']:.0f} | {seconds:.2f} s | {least['generation_seconds']:.2f} s | "
        f"{least['learning_seconds']:.2f} s | 0 |",
        "",
        f"greenroom trains {figures['tokens_per_s_ratio']:.2f} times as many tokens per second. The roofline's cores "
        f"do {least['flops_per_s'] / 1e9:.0f} GFLOP/s in {figures['job']['dtype']} and move "
        f"{least['bytes_per_s'] / 1e9:.1f} GB/s.",
    ]
    return "\n".join(lines)


def arguments() -> argparse.ArgumentParser:
    parser = parser_of("vs_trl", __doc__)
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "smollm2-135m", help="folder of SmolLM2")
    parser.add_argument("--problems", type=Path, help="a .jsonl file of GSM8K; without, the quickstart's problems")
    parser.add_argument("--environment", type=Path, default=ROOT / ".bench" / "trl", help="TRL's own environment")
    parser.add_argument("--folder", type=Path, default=ROOT / ".bench" / "vs-trl", help="for runs and logs")
    parser.add_argument(
        "--steps",
        type=at_least(WARM_UP_STEPS + 1),
        default=3,
        help=f"of each run; the first {WARM_UP_STEPS} is not counted",
    )
    parser.add_argument("--rounds", type=at_least(1), default=2, help="runs of each side")
    parser.add_argument("--prompts", type=at_least(1), default=4, help="per step")
    parser.add_argument("--group", type=at_least(2), default=8, help="completions of each prompt")
    parser.add_argument("--completion-tokens", type=at_least(1), default=64, help="of each (default 64)")
    parser.add_argument("--dtype", choices=get_args(Dtype), default="bfloat16", help="of weights and passes")
    parser.add_argument(
        "--threads", type=at_least(1), default=usable_cores(), help="of each side (default: a core each)"
    )
    parser.add_argument("--completions-per-pass", type=at_least(1), default=8, help="forward and backward at a time")
    add_json(parser)
    return parser


def main() -> None:
    parser = arguments()
    options = parser.parse_args()
    if options.prompts * options.group % options.completions_per_pass:
        parser.error(
            f"argument --completions-per-pass: {options.completions_per_pass} does not divide the step's "
            f"{options.prompts * options.group} completions (--prompts times --group)"
        )
    if options.problems is not None and not options.problems.is_file():
        parser.error(f"argument --problems: there is no file {options.problems}")
    if not all((options.model / name).is_file() for name in ("config.json", "tokenizer.json")):
        parser.error(
            f"argument --model: {options.model} holds no model; make it with: greenroom data smollm2 {options.model}"
        )
    folder: Path = options.folder.resolve()
    try:
        model = fixed_length_model(options.model, folder / "model")
    except ValueError as error:
        parser.error(f"argument --model: {error}")
    count = options.steps * options.prompts
    problems = problem_options(options.problems, count)
    prompts = prompts_in_order(problems, count, model, seed=0)
    longest = max(map(len, prompts))

    def job(side: str) -> Job:
        return Job(
            model=str(model),
            folder=str(folder / side),
            prompts=as_text(prompts, model),
            prompts_per_step=options.prompts,
            group=options.group,
            completion_tokens=options.completion_tokens,
            steps=options.steps,
            dtype=options.dtype,
            threads=options.threads,
            completions_per_pass=options.completions_per_pass,
        )

    python = trl_python(options.environment)
    figures = compare(
        job("greenroom"),
        {
            "greenroom": lambda: train_with_greenroom(job("greenroom"), problems, longest),
            "trl": lambda: train_with_trl(job("trl"), python, prompts),
        },
        options.rounds,
        prompts,
    )
    print(json.dumps(figures) if options.json else as_table(figures))


if __name__ == "__main__":
    run(main)
