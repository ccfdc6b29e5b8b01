"""What a recipe needs of this machine, and whether it has it; checked before anything starts."""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from actors.engines.vllm_options import ITEM_BYTES, kv_values_per_token
from actors.tokenizer import PromptOptions, load_chat_format
from env import zygotes
from env.cgroup_hierarchy import memory_left, tasks_left
from env.preflight import check_host
from env.tool_call import ToolName
from orchestration.recipe import ModelSettings, Recipe, RecipeError, ScratchModel
from orchestration.run_folder import choose_folder
from policies.chat_format import ChatFormat, TemplateUnusable
from policies.placement import Node, misfits

GIB = 1 << 30
LIGHT_ACTOR_BYTES = 200 << 20
"""Resident memory of an actor without torch (seen on the quickstart: 133 to 173 MiB)."""
LEARNER_BYTES = 1800 << 20
"""Of the learner without its model (seen on the quickstart: 1.7 GiB with the activations of a micro batch)."""
VLLM_ACTOR_BYTES = 1100 << 20
"""Of one that has imported vLLM, without a model (seen on the quickstart: 1.0 to 1.3 GiB)."""
RAY_BYTES = 500 << 20
"""Ray's own processes on a head node."""
RAY_TASKS = 84
"""Processes and threads of Ray's own (gcs 26, raylet 28) and of the driver (30), as seen on two cores."""
ACTOR_TASKS = {"generator": 67, "learner": 30}
LIGHT_ACTOR_TASKS = 26
LEARNER_BYTES_PER_PARAMETER = {"float32": 16, "bfloat16": 20}
"""Weights, gradients and two moments; in bfloat16 weights and their gradients, and everything again in float32."""


class HostUnfit(RecipeError):
    """This machine can't run the recipe; the text names what is missing and what would help."""


@dataclass(frozen=True, slots=True)
class Need:
    """What one kind of actor would take."""

    actor: str
    count: int
    threads: int
    gpus: float
    memory_bytes: int
    """Of all of them together."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """What would start."""

    recipe: str
    folder: str
    needs: tuple[Need, ...]
    stages: tuple[str, ...]
    memory_available_bytes: int
    nodes: tuple[Node, ...] = ()
    """Of the cluster that the run would join; none if it starts a Ray of its own."""

    @property
    def memory_bytes(self) -> int:
        """Memory that the whole run takes, about."""
        return RAY_BYTES + sum(need.memory_bytes for need in self.needs)

    @property
    def tasks(self) -> int:
        """Processes and threads that the whole run has at least, without those of calls."""
        return RAY_TASKS + sum(need.count * ACTOR_TASKS.get(need.actor, LIGHT_ACTOR_TASKS) for need in self.needs)

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self) | {"memory_bytes": self.memory_bytes}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What counts for memory."""

    parameters: int
    kv_values_per_token: int


def plan(recipe: Recipe, runs: Path) -> Plan:
    """What would start, and what it takes. Raises `RecipeError` for a model or folder that can't be used,
    `TemplateUnusable` for the model's chat template."""
    shape = model_shape(recipe.model)
    if recipe.model.path is not None:
        usable_chat_format(recipe.model.path, recipe.prompt)
    engine, tokens = recipe.generators.engine, recipe.generators.engine.kv_tokens
    kv = 0 if tokens is None else tokens * shape.kv_values_per_token * ITEM_BYTES[engine.dtype]
    learners = recipe.learner.count
    # Sharded once, but each learner starts with the whole model.
    learner = shape.parameters * (LEARNER_BYTES_PER_PARAMETER[recipe.model.dtype] + 4 * (learners - 1))
    generators, environments, rollouts = recipe.generators, recipe.environments, recipe.rollouts
    each_worker = recipe.largest_call().memory_bytes
    if environments.isolation == "zygote":
        each_worker += zygotes.most_memory_bytes(environments.preloaded)
    needs = (
        Need(
            "generator",
            generators.count,
            generators.threads,
            generators.gpus,
            generators.count * (VLLM_ACTOR_BYTES + shape.parameters * ITEM_BYTES[engine.dtype] + kv),
            "KV cache: " + ("as much as vLLM takes" if tokens is None else f"{tokens} tokens each"),
        ),
        Need(
            "environment",
            environments.count,
            1,
            0.0,
            environments.count * (LIGHT_ACTOR_BYTES + environments.workers * each_worker),
            f"{environments.workers} calls at once each, nsjail, {environments.isolation}",
        ),
        Need("rollout", rollouts.count, 1, 0.0, rollouts.count * LIGHT_ACTOR_BYTES),
        Need("learner", learners, recipe.learner.threads, recipe.learner.gpus, learners * LEARNER_BYTES + learner),
        Need("balancer", 1, 1, 0.0, LIGHT_ACTOR_BYTES, recipe.balancer.strategy),
        Need("archive", 1, 1, 0.0, LIGHT_ACTOR_BYTES),
        Need("director", 1, 1, 0.0, LIGHT_ACTOR_BYTES),
    )
    return Plan(
        recipe=recipe.name,
        folder=str(choose_folder(recipe, runs)),
        needs=needs,
        stages=tuple(f"{name}: {stage.kind}, {stage.steps} steps" for name, stage in recipe.stages.items()),
        memory_available_bytes=min(psutil.virtual_memory().available, _left_by_cgroups()),
    )


def _tasks_left() -> int | None:
    """Processes and threads that this process's user and cgroups may add; None where there is no limit."""
    left = [tasks_left()]
    most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if os.geteuid() != 0 and most != resource.RLIM_INFINITY:  # root is exempt (getrlimit(2))
        everybody = psutil.process_iter(["uids", "num_threads"])
        ours = [each.info for each in everybody if each.info["uids"] and each.info["uids"].real == os.getuid()]
        left.append(max(0, most - sum(each["num_threads"] or 0 for each in ours)))
    return min((each for each in left if each is not None), default=None)


def _left_by_cgroups() -> int:
    left = memory_left()
    return sys.maxsize if left is None else left


def check(recipe: Recipe, runs: Path) -> Plan:
    """The plan, if this machine can carry it out.

    Raises `HostUnfit` that lists everything that is missing, and as `plan` does.
    """
    planned = plan(recipe, runs)
    if recipe.cluster.address:
        return _check_cluster(recipe, planned)
    faults = [f"{problem}" for problem in check_host(isolation=recipe.environments.isolation)]
    if planned.memory_bytes > planned.memory_available_bytes:
        faults.append(
            f"the run takes about {planned.memory_bytes / GIB:.1f} GiB of memory, but "
            f"{planned.memory_available_bytes / GIB:.1f} GiB are free (here, or in the container or unit that this "
            "process is in); lower generators.count, "
            "generators.engine.kv_tokens, environments.workers or environments.preloaded"
        )
    if (left := _tasks_left()) is not None and planned.tasks > left:
        faults.append(
            f"the run has {planned.tasks} processes and threads or more, but {left} are left to this user, container "
            "or unit; raise `ulimit -u`, --pids-limit of a container, TasksMax= of a unit, or lower counts of actors"
        )
    if recipe.generators.gpus or recipe.learner.gpus:
        faults += _gpu_faults(recipe)
    if faults:
        raise HostUnfit("this machine can't run the recipe:\n  " + "\n  ".join(faults))
    return planned


def _check_cluster(recipe: Recipe, planned: Plan) -> Plan:
    """The plan with the cluster's nodes. Raises `HostUnfit` if it can't be joined, or could not hold the actors."""
    from actors.system.ray_access import ClusterRefused
    from actors.system.ray_placement import cluster_nodes
    from orchestration.cast import cast_for
    from orchestration.placing import placed, wishes

    try:
        nodes = cluster_nodes(recipe.cluster.address, recipe.cluster.allow_open)
    except ClusterRefused as refused:
        raise HostUnfit(str(refused)) from refused
    cast = cast_for(recipe, model=Path("model"), folder=Path(planned.folder), run_id="preflight")
    if faults := misfits(wishes(placed(cast, recipe)), nodes):
        raise HostUnfit(
            f"the cluster at {recipe.cluster.address} can't hold the recipe's actors:\n  "
            + "\n  ".join(faults)
            + "\nlower the counts, or change [cluster] in the recipe (docs/clusters.md), or add nodes"
        )
    return replace(planned, nodes=tuple(nodes))


def show(planned: Plan, out: Console) -> None:
    """Print what would start."""
    table = Table(title=f"{planned.recipe}: what would start")
    for column in ("actor", "count", "threads", "GPUs", "memory", ""):
        table.add_column(column)
    for need in planned.needs:
        memory = f"{need.memory_bytes / (1 << 20):.0f} MiB"
        table.add_row(need.actor, str(need.count), str(need.threads), f"{need.gpus:g}", memory, need.note)
    out.print(table)
    for stage in planned.stages:
        out.print(f"  {stage}")
    takes, free = planned.memory_bytes / GIB, planned.memory_available_bytes / GIB
    if planned.nodes:
        out.print(f"memory: about {takes:.1f} GiB, on all nodes of the cluster together:")
        for node in planned.nodes:
            out.print(f"  {node.described()}")
    else:
        out.print(f"memory: about {takes:.1f} GiB of {free:.1f} GiB free")
    out.print(f"run folder: {planned.folder}")


def model_shape(model: ModelSettings) -> ModelShape:
    """The shape of the model that a recipe names. Raises `RecipeError` if it is not there or not whole."""
    if model.scratch is not None:
        return _scratch_shape(model.scratch)
    assert model.path is not None, "a recipe names one model"
    return _shape_on_disk(model.path)


def longest_sequence(model: Path) -> int:
    """Tokens of the longest sequence that a model takes. Raises `RecipeError` if there is no model at `model`."""
    path = model / "config.json"
    if not path.is_file():
        raise RecipeError(f"{model} holds no config.json; give a folder with a model in Hugging Face format")
    config = json.loads(path.read_text())
    if "max_position_embeddings" not in config:
        raise RecipeError(f"{path} has no max_position_embeddings; greenroom knows no model of that kind")
    return config["max_position_embeddings"]


def usable_chat_format(model: Path, prompt: PromptOptions) -> ChatFormat:
    """How a model's tokenizer writes dialogues. Raises `RecipeError` if it can't at all, `TemplateUnusable` if its chat
    template can't continue one."""
    from jinja2 import TemplateError, TemplateSyntaxError

    try:
        return load_chat_format(str(model), prompt)
    except TemplateUnusable:
        raise
    except TemplateSyntaxError as error:
        raise TemplateUnusable(
            f"the chat template in {model} is no valid Jinja: line {error.lineno}: {error}; mend it"
        ) from error
    except TemplateError as error:
        raise TemplateUnusable(
            f"the chat template in {model} refuses an answer after a tool's result: {error}; use one that renders it"
        ) from error
    except ValueError as error:
        raise RecipeError(str(error)) from error


def untold_of_tools(model: Path, chat: ChatFormat, tools: Sequence[ToolName]) -> str:
    """A warning if no prompt lists the tools, else nothing; many chat templates ignore them, and then the model knows
    of them only if it was trained so.

    Raises `TemplateUnusable` if there are tools, and the template drops their results.
    """
    if not tools:
        return ""
    chat.check_results()
    if chat.prompt("?", tools) != chat.prompt("?", ()):
        return ""
    return f"the chat template in {model} does not list tools: the model is not told of any"


def _scratch_shape(scratch: ScratchModel) -> ModelShape:
    head = scratch.hidden // scratch.heads
    attention = scratch.hidden * head * (2 * scratch.heads + 2 * scratch.kv_heads)
    layer = attention + 3 * scratch.hidden * scratch.intermediate + 2 * scratch.hidden
    return ModelShape(
        parameters=scratch.layers * layer + 256 * scratch.hidden,
        kv_values_per_token=2 * scratch.layers * scratch.kv_heads * head,
    )


def _shape_on_disk(path: Path) -> ModelShape:
    from transformers import AutoConfig

    missing = [name for name in ("config.json", "tokenizer.json") if not (path / name).is_file()]
    weights = list(path.glob("*.safetensors"))
    if missing or not weights:
        lacks = ", ".join([*missing, *([] if weights else ["*.safetensors"])])
        raise RecipeError(f"model.path = {path}: that folder has no {lacks}; give a folder in Hugging Face format")
    config = AutoConfig.from_pretrained(path)
    stored = sum(file.stat().st_size for file in weights)
    return ModelShape(
        parameters=stored // 2,  # bf16 on disk, as most are; float32 errs on the safe side
        kv_values_per_token=kv_values_per_token(config),
    )


def _gpu_faults(recipe: Recipe) -> list[str]:
    import torch

    wanted = recipe.generators.count * recipe.generators.gpus + recipe.learner.count * recipe.learner.gpus
    have = torch.cuda.device_count()
    if wanted > have:
        return [f"the recipe asks for {wanted:g} GPUs, but {have} can be used; lower generators.gpus or learner.gpus"]
    return []
