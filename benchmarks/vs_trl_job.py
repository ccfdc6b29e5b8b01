"""The work that both sides of `benchmarks.vs_trl` do: one model folder, the same prompts, completions of equal length.

What is sampled differs from side to side, so lengths must not depend on it: both sides get a copy of the model's folder
whose turns end with a token that the model never samples. Nothing is forced or ignored while they sample; completions
simply run to their limit, and the benchmark counts what was trained on.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from actors.tokenizer import PromptOptions, load_chat_format
from orchestration.data.problems import load_problems
from policies.curriculum import ProblemOptions, ProblemStream
from policies.data_options import DatasetOptions

Dtype = Literal["float32", "bfloat16"]
NEVER_SAMPLED = "<empty_output>"
"""One of the tokens that SmolLM2's tokenizer keeps for code and that its chats never have."""
PROMPT = PromptOptions(instructions=False, opening="")
STAGE = "rl"


@dataclass(frozen=True, slots=True)
class Job:
    """What a side is told. Written as JSON for the side that has none of our code."""

    model: str
    """Folder of the model."""
    folder: str
    """Where the side may write."""
    prompts: list[str]
    """As text, in the order in which steps take them."""
    prompts_per_step: int
    group: int
    completion_tokens: int
    steps: int
    dtype: Dtype
    """Of weights and passes."""
    threads: int
    completions_per_pass: int
    """Of TRL's padded passes; ours are packed to as many tokens."""
    learning_rate: float = 1e-6
    seed: int = 0


def fixed_length_model(model: Path, folder: Path) -> Path:
    """A folder with the model's weights (linked) whose turns end with `NEVER_SAMPLED`.

    Raises `ValueError` if the tokenizer has no such token.
    """
    folder.mkdir(parents=True, exist_ok=True)
    known = json.loads((model / "tokenizer.json").read_text())["added_tokens"]
    ids = {token["content"]: token["id"] for token in known}
    if NEVER_SAMPLED not in ids:
        raise ValueError(f"{model} has no token {NEVER_SAMPLED!r}; the benchmark is made for SmolLM2")
    for file in model.iterdir():
        target = folder / file.name
        target.unlink(missing_ok=True)
        if file.suffix == ".safetensors":
            target.symlink_to(file.resolve())
        else:
            shutil.copy(file, target)
    ended = json.loads((model / "tokenizer_config.json").read_text())["eos_token"]
    _update(folder / "tokenizer_config.json", {"eos_token": NEVER_SAMPLED})
    for name in ("config.json", "generation_config.json"):
        _update(folder / name, {"eos_token_id": ids[NEVER_SAMPLED]})
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text().replace(ended, NEVER_SAMPLED))
    return folder


def _update(file: Path, values: dict[str, Any]) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values, indent=2))


def problem_options(file: Path | None, count: int) -> ProblemOptions:
    """The first `count` problems of a file of GSM8K's, or the quickstart's."""
    if file is None:
        return ProblemOptions()
    return ProblemOptions(source="dataset", dataset=DatasetOptions(name="gsm8k", path=str(file.resolve()), limit=count))


def prompts_in_order(options: ProblemOptions, count: int, model: Path, seed: int) -> list[list[int]]:
    """Ids of the prompts, in the order in which a run of ours takes them."""
    problems = () if options.dataset is None else load_problems(options.dataset).problems
    stream = ProblemStream(options, run_seed=seed, held_out=False, problems=problems)
    chat = load_chat_format(str(model), PROMPT)
    return [chat.prompt(stream.problem(index).question, ()) for index in range(count)]


def as_text(prompts: list[list[int]], model: Path) -> list[str]:
    """What a tokenizer has to make the same ids of again."""
    chat = load_chat_format(str(model), PROMPT)
    return [chat.decode(prompt) for prompt in prompts]


def recipe_for(job: Job, problems: ProblemOptions, longest_prompt: int) -> dict[str, Any]:
    """The job as a recipe of ours, for `greenroom train`."""
    completions = job.prompts_per_step * job.group
    longest = longest_prompt + job.completion_tokens
    kv_tokens = completions * -(-longest // 32) * 32
    return {
        "name": "vs-trl",
        "seed": job.seed,
        "tools": [],
        "model": {"path": job.model, "dtype": job.dtype},
        "prompt": PROMPT.model_dump(),
        "generators": {
            "count": 1,
            "threads": job.threads,
            "engine": {
                "dtype": job.dtype,
                "max_sequence_tokens": longest,
                "max_running": completions,
                "kv_tokens": kv_tokens,
                "max_step_tokens": kv_tokens,
            },
        },
        "environments": {"count": 1, "workers": 1, "preloaded": []},  # no code is run
        "rollouts": {"count": 1},
        "learner": {"threads": job.threads},
        "checkpoints": {"interval_seconds": 1e9},  # TRL saves nothing either
        "metrics": {"report_seconds": 0.0},
        "evaluation": {"count": 1, "before": False, "limits": {"max_tokens": longest, "max_turns": 1}},
        "stages": {
            STAGE: {
                "kind": "reinforce",
                "steps": job.steps,
                "prompts": job.prompts_per_step,
                "group": job.group,
                "rewards": "random",
                "problems": problems.model_dump(mode="json", exclude_none=True),
                "objective": {"name": "grpo"},
                "limits": {"max_tokens": longest, "max_turns": 1, "max_turn_tokens": job.completion_tokens},
                "optimiser": {
                    "learning_rate": job.learning_rate,
                    "warmup_steps": 0,
                    "weight_decay": 0.0,
                    "micro_batch_tokens": job.completions_per_pass * longest,
                },
            }
        },
    }
