"""The other side of `benchmarks.vs_trl`: TRL's GRPOTrainer. Runs in an environment of its own, without greenroom.

    python trl_grpo.py JOB.json        # prints the figures as one line of JSON, the last one

The job's fields are those of `vs_trl.Job`. Times are wall-clock seconds around TRL's own methods, which are called
unchanged: `generation` is `_generate` (tokens in, tokens out), `learning` is forward, backward and optimiser, and what
is left of a step is its rest (rewards, advantages, tensors, logging).
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

if len(sys.argv) != 2 or not Path(sys.argv[1]).is_file():
    raise SystemExit("usage: python trl_grpo.py JOB.json (`python -m benchmarks.vs_trl` writes it and runs this)")
THREADS = str(json.loads(Path(sys.argv[1]).read_text())["threads"])
os.environ |= {
    "OMP_NUM_THREADS": THREADS,
    "MKL_NUM_THREADS": THREADS,
    "HF_HUB_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
}

try:
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportMissingImports]
except ModuleNotFoundError as error:
    raise SystemExit(
        f"{sys.executable} has no {error.name}; `python -m benchmarks.vs_trl` makes a Python that has"
    ) from None


class TimedTrainer(GRPOTrainer):
    """TRL's trainer with a clock beside it."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.seconds: dict[str, float] = defaultdict(float)
        """Since the step began, by part."""
        self.tokens = 0
        """Sampled since the step began: all of them are learned from."""

    def _generate(self, *arguments: Any, **settings: Any) -> Any:
        begun = time.perf_counter()
        generated = super()._generate(*arguments, **settings)
        self.seconds["generation"] += time.perf_counter() - begun
        return generated

    def _generate_and_score_completions(self, *arguments: Any, **settings: Any) -> Any:
        begun = time.perf_counter()
        batch = super()._generate_and_score_completions(*arguments, **settings)
        self.seconds["preparation"] += time.perf_counter() - begun
        self.tokens += int(batch["completion_mask"].sum())
        return batch

    def training_step(self, *arguments: Any, **settings: Any) -> Any:
        before, begun = self.seconds["preparation"], time.perf_counter()
        loss = super().training_step(*arguments, **settings)
        self.seconds["learning"] += time.perf_counter() - begun - (self.seconds["preparation"] - before)
        return loss


class Steps(TrainerCallback):
    """The figures of each optimiser step, from one end to the next."""

    def __init__(self) -> None:
        self.figures: list[dict[str, float]] = []
        self.trainer: TimedTrainer | None = None
        self._begun = self._update_begun = 0.0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._begun = time.perf_counter()

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        self._update_begun = time.perf_counter()

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        assert self.trainer is not None
        self.trainer.seconds["learning"] += time.perf_counter() - self._update_begun

    def on_step_end(self, *_: Any, **__: Any) -> None:
        trainer, now = self.trainer, time.perf_counter()
        assert trainer is not None
        self.figures.append(
            {
                "seconds": now - self._begun,
                "generation": trainer.seconds["generation"],
                "learning": trainer.seconds["learning"],
                "tokens": float(trainer.tokens),
            }
        )
        trainer.seconds.clear()
        trainer.tokens, self._begun = 0, now


def coin(completions: list[Any], **_: Any) -> list[float]:
    """The reward on both sides: no reading of answers, and signal in nearly every group."""
    return [float(random.random() < 0.5) for _ in completions]


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(job["threads"])
    random.seed(job["seed"])
    completions = job["prompts_per_step"] * job["group"]
    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    steps = Steps()
    trainer = TimedTrainer(
        model=job["model"],
        reward_funcs=coin,
        processing_class=tokenizer,
        train_dataset=Dataset.from_dict({"prompt": job["prompts"]}),
        callbacks=[steps],
        args=GRPOConfig(
            output_dir=job["folder"],
            model_init_kwargs={"dtype": job["dtype"]},
            bf16=False,  # weights are in `dtype` already: casting them at each use is slower
            use_cpu=True,
            seed=job["seed"],
            max_steps=job["steps"],
            per_device_train_batch_size=job["completions_per_pass"],
            gradient_accumulation_steps=completions // job["completions_per_pass"],
            num_generations=job["group"],
            max_completion_length=job["completion_tokens"],
            temperature=1.0,
            top_k=0,
            beta=0.0,
            epsilon=0.2,
            epsilon_high=0.28,
            loss_type="dapo",
            learning_rate=job["learning_rate"],
            lr_scheduler_type="constant",
            optim="adamw_torch_fused",
            weight_decay=0.0,
            max_grad_norm=1.0,
            gradient_checkpointing=False,
            shuffle_dataset=False,
            save_strategy="no",
            logging_steps=1,
            report_to=[],
            disable_tqdm=True,
        ),
    )
    steps.trainer = trainer
    trainer.train()
    print(json.dumps({"steps": steps.figures, "prompt_tokens": [len(tokenizer(p).input_ids) for p in job["prompts"]]}))


if __name__ == "__main__":
    main()
