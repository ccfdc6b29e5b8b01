"""Every setting of a run, as pydantic models; a recipe is a TOML file of them (`orchestration.recipe_loading`).

Nothing here touches the machine: `orchestration.preflight` checks what a recipe needs of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from actors.engines.vllm_options import VllmOptions
from actors.simulated_learner import LearnerCost
from actors.tokenizer import PromptOptions
from env.isolation import IsolationKind
from env.preload import LIBRARIES
from env.sessions import SessionOptions
from env.tool_call import PYTHON_TOOL, Limits, ToolName
from env.zygotes import RECYCLE_AFTER
from policies.balancing import BalancerOptions, longest_lease
from policies.hardware import HardwareOptions, ModelSize
from policies.options import LimitOptions, Options
from policies.placement import ClusterOptions
from policies.stages import EvaluationOptions, FineTuningOptions, ReinforcementOptions
from policies.step_cost import StepCost
from policies.workloads import ProfileName, WorkloadOptions


class RecipeError(ValueError):
    """A recipe that can't be used; the text says where and what would be right."""


class ScratchModel(Options):
    """A Llama built from scratch, with the quickstart's tokenizer."""

    hidden: Annotated[int, Field(ge=32)] = 128
    layers: Annotated[int, Field(ge=1)] = 4
    heads: Annotated[int, Field(ge=1)] = 4
    """vLLM's CPU attention needs a head size (hidden / heads) of 32, 64, 80, 96, 112, 128 or 256."""
    kv_heads: Annotated[int, Field(ge=1)] = 4
    intermediate: Annotated[int, Field(ge=32)] = 384
    initializer_range: Annotated[float, Field(gt=0)] = 0.05
    """Standard deviation of initial weights: narrow models learn sooner from larger ones than the usual 0.02."""
    max_tokens: Annotated[int, Field(ge=64)] = 512
    """Longest sequence."""

    @model_validator(mode="after")
    def _heads_divide(self) -> ScratchModel:
        if self.hidden % self.heads or self.heads % self.kv_heads:
            raise ValueError(
                f"hidden={self.hidden} must be a multiple of heads={self.heads}, and heads of kv_heads={self.kv_heads}"
            )
        if self.hidden // self.heads not in (32, 64, 80, 96, 112, 128, 256):
            raise ValueError(
                f"the head size hidden / heads = {self.hidden // self.heads} is one that vLLM's CPU attention lacks; "
                "choose 32, 64, 80, 96, 112, 128 or 256"
            )
        return self


class ModelSettings(Options):
    """Which model is trained: one from disk, or one from scratch."""

    path: Path | None = None
    """Folder of a model in Hugging Face format."""
    scratch: ScratchModel | None = None
    size: ModelSize | None = None
    """The dimensions of the model at `path`, for a dry run where it is not at hand."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the learner's passes; in bfloat16 the optimiser works on float32 copies of the weights. The engines' is
    `generators.engine.dtype`."""

    @model_validator(mode="after")
    def _one_of_both(self) -> ModelSettings:
        if (self.path is None) == (self.scratch is None):
            raise ValueError(
                "give either model.path (a folder in Hugging Face format) or [model.scratch], not both or neither"
            )
        return self


class GeneratorSettings(Options):
    """The generator actors."""

    count: Annotated[int, Field(ge=1)] = 2
    threads: Annotated[int, Field(ge=1)] = 1
    """Compute threads of each (CPU)."""
    gpus: Annotated[float, Field(ge=0)] = 0.0
    """GPUs of each."""
    engine: VllmOptions = VllmOptions()


class EnvironmentSettings(Options):
    """The environment actors."""

    count: Annotated[int, Field(ge=1)] = 2
    workers: Annotated[int, Field(ge=1)] = 2
    """Calls that each runs at once."""
    isolation: IsolationKind = "zygote"
    """How calls are kept apart: each forked by a warm interpreter into its own namespaces, or each in a fresh jail."""
    preloaded: tuple[str, ...] = LIBRARIES
    """Libraries that zygotes import before a call comes, in this order; those that the sandbox lacks are left out."""
    recycle_after: Annotated[int, Field(ge=1)] = RECYCLE_AFTER
    """Calls after which a zygote's jail is replaced by a new one."""
    sessions: SessionOptions = SessionOptions()
    """Bounds on what the cells of `jupyter_code` keep alive, for each environment."""


class RolloutSettings(Options):
    """The rollout actors."""

    count: Annotated[int, Field(ge=1)] = 2


LOOPBACK = "127.0.0.1"


class LearnerSettings(Options):
    """The learner actors."""

    count: Annotated[int, Field(ge=1)] = 1
    """Learners over which the model, its gradients and the optimiser's moments are sharded (FSDP2)."""
    threads: Annotated[int, Field(ge=1)] = 2
    """Compute threads of each (CPU)."""
    gpus: Annotated[float, Field(ge=0)] = 0.0
    """GPUs of each; learners on GPUs are untested."""
    host: str = LOOPBACK
    """Where the first learner waits for the others: its address in the cluster, or the loopback if all run on one
    machine."""


class SimulationSettings(Options):
    """What `greenroom simulate` needs to know beyond the rest: how long things take, and what models say."""

    cost: StepCost = StepCost()
    """Of one engine's steps; `greenroom calibrate` measures it."""
    update_seconds: Annotated[float, Field(ge=0)] = 1.0
    """In which an engine takes new weights."""
    learner: LearnerCost = LearnerCost()
    workloads: dict[str, ProfileName | WorkloadOptions] = Field(default_factory=dict)
    """By stage: the name of a profile, or a workload of one's own. Stages that are not named get one that is scaled to
    their limits (`WorkloadOptions.scaled`)."""


class CheckpointSettings(Options):
    """What `greenroom train --resume` goes on from."""

    interval_seconds: Annotated[float, Field(ge=0)] = 20.0
    """Least time between two checkpoints within a stage; 0 writes one after each step. In any case one is written at
    the end of each stage and of each evaluation."""
    keep: Annotated[int, Field(ge=1)] = 2
    """How many are kept; one that turns out to be damaged is stepped over if there is one before it."""


class SupervisionSettings(Options):
    """What becomes of actors that die or freeze; docs/faults.md."""

    restarts: Annotated[int, Field(ge=0)] = 10
    """How often each actor is started again within any `window_seconds`. One that dies more often stays dead, and the
    run ends where no other can take its place."""
    window_seconds: Annotated[float, Field(gt=0)] = 600.0
    frozen_after_seconds: Annotated[float, Field(ge=5)] = 120.0
    """An actor whose loop answers nothing for so long is killed, and started again."""


class MetricsSettings(Options):
    """Where figures go, beside `metrics.jsonl` and TensorBoard."""

    report_seconds: Annotated[float, Field(ge=0)] = 60.0
    """How often the report is renewed while the run goes on, at most; 0: only at its end."""
    prometheus_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """Port of a page for Prometheus; 0 takes a free one. None: no page."""
    prometheus_address: str = "127.0.0.1"
    """Address that it listens on. There is no token: leave it to the loopback, or to a network that you trust."""
    wandb: bool = False
    """Weights & Biases, offline unless WANDB_MODE says otherwise; needs the extra `wandb`."""


Stage = Annotated[FineTuningOptions | ReinforcementOptions, Field(discriminator="kind")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
"""Of what becomes files and folders."""


class Recipe(Options):
    """A run. Fields without a default have to be given."""

    name: Name
    """Also the name of the run's folder, `runs/NAME`."""
    seed: int = 0
    deterministic: bool = False
    """Whether the same recipe gives the same weights, bit for bit, also where a run died and was resumed. It costs
    time: rollouts run in fixed waves that wait for one another at each turn (docs/resuming.md)."""
    tools: tuple[ToolName, ...] = (PYTHON_TOOL,)
    """What the model may call: `python_code_with_standard_io` (each program on its own) and `jupyter_code` (cells that
    share names). Without any, it has to answer on its own (a control experiment)."""
    model: ModelSettings
    prompt: PromptOptions = PromptOptions()
    generators: GeneratorSettings = GeneratorSettings()
    environments: EnvironmentSettings = EnvironmentSettings()
    rollouts: RolloutSettings = RolloutSettings()
    balancer: BalancerOptions = BalancerOptions()
    learner: LearnerSettings = LearnerSettings()
    cluster: ClusterOptions = ClusterOptions()
    checkpoints: CheckpointSettings = CheckpointSettings()
    supervision: SupervisionSettings = SupervisionSettings()
    simulation: SimulationSettings = SimulationSettings()
    hardware: HardwareOptions | None = None
    """The machines that the recipe is meant for: `--dry-run` sizes it for them, wherever it is called."""
    evaluation: EvaluationOptions = EvaluationOptions(count=256)
    """After each stage; the first one, after SFT, is what training starts from."""
    metrics: MetricsSettings = MetricsSettings()
    stages: Annotated[dict[Name, Stage], Field(min_length=1)]
    """In the order of the file, by name: `[stages.sft]`, `[stages.rl-1]`."""

    @field_validator("stages")
    @classmethod
    def _names_are_free(cls, stages: dict[str, Stage]) -> dict[str, Stage]:
        for name in stages:
            if name == "start" or name.startswith("evaluation"):
                raise ValueError(f"{name!r} is what evaluations are filed under; choose another name")
        return stages

    @field_validator("tools")
    @classmethod
    def _each_tool_once(cls, tools: tuple[ToolName, ...]) -> tuple[ToolName, ...]:
        if len(set(tools)) < len(tools):
            raise ValueError(f"{', '.join(tools)}: give each tool once")
        return tools

    @model_validator(mode="after")
    def _sequences_fit_the_engine(self) -> Recipe:
        engine, kv_tokens = self.generators.engine, self.generators.engine.kv_tokens
        longest = None if kv_tokens is None else longest_lease(self.balancer, kv_tokens, engine.block_tokens)
        for where, limits in self.all_limits().items():
            if limits.max_tokens > engine.max_sequence_tokens:
                raise ValueError(
                    f"{where}.max_tokens={limits.max_tokens} is longer than "
                    f"generators.engine.max_sequence_tokens={engine.max_sequence_tokens}; "
                    "raise the latter or lower the former"
                )
            if longest is not None and limits.max_tokens > longest:
                raise ValueError(
                    f"{where}.max_tokens={limits.max_tokens} does not fit "
                    f"generators.engine.kv_tokens={kv_tokens}, of which balancer.headroom="
                    f"{self.balancer.headroom:g} lets a rollout have {longest}; "
                    "one that can never fit would wait for ever"
                )
        scratch = self.model.scratch
        if scratch is not None and scratch.max_tokens < engine.max_sequence_tokens:
            raise ValueError(
                f"model.scratch.max_tokens={scratch.max_tokens} is less than "
                f"generators.engine.max_sequence_tokens={engine.max_sequence_tokens}; make them equal"
            )
        return self

    @model_validator(mode="after")
    def _workloads_are_those_of_stages(self) -> Recipe:
        for name in self.simulation.workloads:
            if name not in self.stages:
                raise ValueError(
                    f"simulation.workloads.{name}: there is no such stage; stages are {', '.join(self.stages)}"
                )
        return self

    @model_validator(mode="after")
    def _deterministic_runs_leave_nothing_to_chance(self) -> Recipe:
        if not self.deterministic:
            return self
        engine = self.generators.engine
        required = {
            "model.dtype": (self.model.dtype, "float32"),
            "generators.engine.dtype": (engine.dtype, "float32"),
            "generators.engine.prefix_caching": (engine.prefix_caching, False),
            "balancer.strategy": (self.balancer.strategy, "worst_case"),
            "learner.count": (self.learner.count, 1),
        }
        for name, (given, needed) in required.items():
            if given != needed:
                raise ValueError(f"{name} = {given!r}, but a deterministic run needs {needed!r}; set it")
        for name, stage in self.stages.items():
            if isinstance(stage, ReinforcementOptions) and stage.max_staleness:
                raise ValueError(
                    f"stages.{name}.max_staleness = {stage.max_staleness}, but a deterministic run needs 0: which "
                    "weights sample a token of an asynchronous stage is up to the wall clock; set it, or "
                    "deterministic = false"
                )
        if engine.kv_tokens is None:
            raise ValueError(
                "generators.engine.kv_tokens is left to vLLM, but a deterministic run's waves are as large as it says; "
                "give a number"
            )
        return self

    @model_validator(mode="after")
    def _sharded_learners_serve_the_stages(self) -> Recipe:
        for name, stage in self.stages.items():
            kl_weight = 0.0 if isinstance(stage, FineTuningOptions) else stage.objective.kl_weight
            if kl_weight and self.learner.count > 1:
                raise ValueError(
                    f"stages.{name}.objective.kl_weight={kl_weight} needs a reference model, which sharded learners do "
                    f"not keep, but learner.count={self.learner.count}; set kl_weight = 0 or learner.count = 1"
                )
        return self

    @model_validator(mode="after")
    def _learners_find_each_other(self) -> Recipe:
        options = self.cluster.learners
        if options is not None and options.together and options.cpus == 0 and not options.resources:
            raise ValueError(
                f"cluster.learners.together = {options.together!r} reserves places, but cluster.learners.cpus = 0 "
                "leaves nothing to reserve in them; give some, or leave it out"
            )
        apart = options is not None and options.together != "strict_pack"
        if self.cluster.address and apart and self.learner.count > 1 and self.learner.host == LOOPBACK:
            raise ValueError(
                f"learner.count={self.learner.count} learners may run on several nodes, but the first one waits for "
                'the others on its loopback; set cluster.learners.together = "strict_pack", or learner.host to the '
                "address of the node that cluster.learners.labels select"
            )
        return self

    @model_validator(mode="after")
    def _what_a_stage_keeps_is_there(self) -> Recipe:
        before: FineTuningOptions | ReinforcementOptions | None = None
        for name, stage in self.stages.items():
            if isinstance(stage, ReinforcementOptions):
                same_kind = before is not None and (before.optimiser.muon is None) == (stage.optimiser.muon is None)
                if not stage.reset_optimiser and not same_kind:
                    raise ValueError(
                        f"stages.{name}.reset_optimiser = false goes on with the optimiser of the stage before, but "
                        "there is none of the same kind (both with muon, or both without); leave it true"
                    )
                had_one = isinstance(before, ReinforcementOptions) and before.objective.kl_weight
                if not stage.refresh_reference and not (had_one and stage.objective.kl_weight):
                    raise ValueError(
                        f"stages.{name}.refresh_reference = false keeps the reference of the stage before, but they "
                        "don't both have one (objective.kl_weight > 0); leave it true"
                    )
            before = stage
        return self

    def all_limits(self) -> dict[str, LimitOptions]:
        """The limits of every part of the run, by where they stand in the recipe."""
        limits = {f"stages.{name}.limits": stage.limits for name, stage in self.stages.items()}
        return limits | {"evaluation.limits": self.evaluation.limits}

    def largest_call(self) -> Limits:
        """The largest limits that any call of the run has."""
        return max((limits.call for limits in self.all_limits().values()), key=lambda call: call.memory_bytes)
