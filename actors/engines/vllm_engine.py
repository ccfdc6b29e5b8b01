"""vLLM, driven in process: one thread owns the engine, commands are applied between its steps.

vLLM's asyncio engine refuses to run inside an actor's process, and stepping on the event loop makes the actor
deaf for as long as a step takes. So a pump task hands the actor's own thread one round at a time: apply what
has been asked for since the last round (add, abort), step once, report. Nobody else touches the engine.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal, Protocol

from actors.engines.engine import EngineCapacity, EngineFailed, EngineUsage, SampleRequest, SampleResult
from actors.engines.vllm_options import ITEM_BYTES, VllmOptions, kv_values_per_token
from actors.engines.vllm_rounds import Round, Running, Stepped
from actors.system.clock import Clock, seconds_since
from actors.system.kill_point import reached
from policies.trajectory import WeightsVersion

log = logging.getLogger(__name__)

_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


class Offload(Protocol):
    """An actor port's `offload`."""

    def __call__[T](self, cost: Callable[[], float], work: Callable[[], T]) -> Awaitable[T]: ...


class VllmEngine:
    """See the module's docstring.

    Args:
        model: folder of a model in Hugging Face format.
        offload: runs blocking work on the thread that owns the engine.
        spawn: starts the pump beside the caller's handlers.
    """

    kind = "vllm"

    def __init__(
        self,
        *,
        model: str,
        options: VllmOptions,
        seed: int,
        clock: Clock,
        offload: Offload,
        spawn: Callable[[Any], asyncio.Task[Any]],
    ) -> None:
        self._model, self._options, self._seed = model, options, seed
        self._clock, self._offload, self._spawn = clock, offload, spawn
        self._llm: Any = None
        self._version = WeightsVersion(0, 0)
        self._requests: dict[str, Running] = {}
        self._next = Round([], [])
        self._wake = asyncio.Event()
        self._open = asyncio.Event()
        self._open.set()
        self._generated = 0
        self._busy_seconds = 0.0
        self._last_step_ns = 0
        self._kv_token_seconds = 0.0
        self._kv_since_ns = 0
        self._kv_share = self._kv_share_seen = 0.0
        self._capacity: EngineCapacity | None = None
        self._failure: str | None = None

    async def start(self) -> EngineCapacity:
        self._capacity = await self._offload(lambda: 0.0, self._build)
        self._spawn(self._pump())
        return self._capacity

    def capacity(self) -> EngineCapacity:
        """What the started engine can hold."""
        assert self._capacity is not None, "start the engine first"
        return self._capacity

    async def sample(self, request: SampleRequest) -> SampleResult:
        self._check_alive()
        capacity = self.capacity()
        longest = min(capacity.max_sequence_tokens, capacity.kv_tokens)
        if len(request.ids) + request.max_tokens > longest:
            raise ValueError(
                f"request {request.id}: {len(request.ids)} + {request.max_tokens} tokens "
                f"exceed the engine's {longest}; "
                "lower max_tokens or give the engine more KV cache (a request over capacity would wait for ever)"
            )
        assert request.id not in self._requests, f"request {request.id} is already in the engine"
        running = Running(asyncio.get_running_loop().create_future(), request.on_tokens)
        self._requests[request.id] = running
        self._next.add.append(request)
        self._wake.set()
        try:
            return await running.future
        except asyncio.CancelledError:
            await self.abort(request.id)
            raise

    async def abort(self, request_id: str) -> None:
        running = self._requests.pop(request_id, None)
        if running is None:
            return
        self._next.add = [request for request in self._next.add if request.id != request_id]
        self._next.abort.append(request_id)
        self._wake.set()
        if not running.future.done():
            running.future.set_result(self._result(running, "aborted"))

    async def pause(self) -> None:
        self._open.clear()

    async def resume(self) -> None:
        self._open.set()

    async def update_weights(self, version: WeightsVersion, weights: Iterable[tuple[str, Any]]) -> None:
        self._check_alive()
        pairs = list(weights)
        await self._offload(lambda: 0.0, lambda: self._load_weights(version, pairs))

    def usage(self) -> EngineUsage:
        self._count_kv()
        return EngineUsage(
            running=len(self._requests),
            kv_used_tokens=round(self._kv_share * self.capacity().kv_tokens),
            generated_tokens=self._generated,
            busy_seconds=self._busy_seconds,
            kv_token_seconds=self._kv_token_seconds,
            peak_memory_bytes=1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        )

    def work_done(self) -> int:
        return self._generated

    async def close(self) -> None:
        for request_id in list(self._requests):
            await self.abort(request_id)
        if self._llm is not None:
            await self._offload(lambda: 0.0, self._shut_down)

    # --- on the event loop -----------------------------------------------------------------------

    async def _pump(self) -> None:
        """Step as long as there is something to do; a failed step fails every request in the engine."""
        try:
            while True:
                await self._open.wait()
                if not self._requests and not self._next.abort:
                    self._wake.clear()
                    await self._wake.wait()
                    continue
                await self._pace()
                round_, self._next = self._next, Round([], [])
                start = self._last_step_ns = self._clock.now_ns()
                stepped = await self._offload(lambda: 0.0, lambda work=round_: self._step(work))
                self._busy_seconds += seconds_since(self._clock, start)
                self._count_kv()
                self._kv_share = self._kv_share_seen
                self._deliver(stepped)
        except EngineFailed as failure:
            self._failure = str(failure)
            for running in self._requests.values():
                if not running.future.done():
                    running.future.set_exception(EngineFailed(self._failure))
            self._requests.clear()
            raise

    def _count_kv(self) -> None:
        """Book the KV held since it was last booked."""
        tokens, now = self.capacity().kv_tokens, self._clock.now_ns()
        if self._kv_since_ns:
            self._kv_token_seconds += self._kv_share * tokens * (now - self._kv_since_ns) / 1e9
        self._kv_since_ns = now

    async def _pace(self) -> None:
        """Let requests gather before a step that few of them would share."""
        if len(self._requests) < self._options.max_running / 2:
            rest = self._options.least_step_seconds - seconds_since(self._clock, self._last_step_ns)
            if rest > 0:
                await self._clock.sleep(rest)

    def _deliver(self, stepped: Stepped) -> None:
        for output in stepped.outputs:
            running = self._requests.get(output.request_id)
            if running is None:
                continue  # aborted meanwhile
            completion = output.outputs[0]
            known = len(running.ids)
            ids = list(completion.token_ids[known:])
            logprobs = [at[token].logprob for token, at in zip(ids, completion.logprobs[known:], strict=True)]
            self._generated += len(ids)
            if ids:
                running.sampled(ids, logprobs, stepped.version)
            if running.on_tokens is not None and ids:
                running.on_tokens(ids, logprobs)
            if not output.finished:
                continue
            del self._requests[output.request_id]
            if not running.future.done():
                finish = "stop" if completion.finish_reason == "stop" else "length"
                running.future.set_result(self._result(running, finish))

    def _result(self, running: Running, finish: Literal["stop", "length", "aborted"]) -> SampleResult:
        return SampleResult(
            ids=running.ids,
            logprobs=running.logprobs,
            finish=finish,
            version=running.version or self._version,
            earlier=running.earlier,
        )

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise EngineFailed(self._failure)

    # --- on the engine's thread ------------------------------------------------------------------

    def _build(self) -> EngineCapacity:
        # vLLM reads these when it is imported, so they are set here and not by the caller.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        from vllm import EngineArgs, LLMEngine
        from vllm.platforms import current_platform

        options = self._options
        step_tokens = max(options.max_step_tokens, options.max_running)
        if current_platform.is_cpu() and options.kv_tokens is not None:
            # When vLLM discards what a prefill chunk sampled, it winds the request's generator back, which CPU
            # generators refuse. A step that may be as large as the KV cache never has to chunk.
            step_tokens = max(step_tokens, options.kv_tokens)
        try:
            self._llm = LLMEngine.from_engine_args(
                EngineArgs(
                    model=self._model,
                    dtype=options.dtype,
                    seed=self._seed % 2**32,
                    enforce_eager=True,
                    distributed_executor_backend="uni",
                    # Else a step returns what the one before it has sampled, maybe with other weights.
                    async_scheduling=False,
                    max_model_len=options.max_sequence_tokens,
                    max_num_seqs=options.max_running,
                    max_num_batched_tokens=step_tokens,
                    kv_cache_memory_bytes=self._kv_bytes(),
                    block_size=options.block_tokens,
                    enable_prefix_caching=options.prefix_caching,
                    logprobs_mode="processed_logprobs",
                    skip_tokenizer_init=True,
                    # The defaults in a model's folder (top-p, repetition penalty) must not bend what is sampled.
                    generation_config="vllm",
                )
            )
        except (ValueError, RuntimeError, OSError) as error:
            raise EngineFailed(f"vLLM could not load {self._model}: {error}") from error
        cache = self._llm.vllm_config.cache_config
        return EngineCapacity(
            # vLLM keeps one block back as its null block.
            kv_blocks=cache.num_gpu_blocks - 1,
            block_tokens=cache.block_size,
            max_sequence_tokens=self._llm.vllm_config.model_config.max_model_len,
            max_step_tokens=self._llm.vllm_config.scheduler_config.max_num_batched_tokens,
        )

    def _kv_bytes(self) -> int | None:
        """Bytes of the KV cache that was asked for; None leaves its size to vLLM."""
        from transformers import AutoConfig

        options = self._options
        if options.kv_blocks is None:
            return None
        per_token = kv_values_per_token(AutoConfig.from_pretrained(self._model)) * ITEM_BYTES[options.dtype]
        # One block more than asked for: vLLM keeps its first one as the null block.
        return (options.kv_blocks + 1) * options.block_tokens * per_token

    def _step(self, work: Round) -> Stepped:
        from vllm import SamplingParams, TokensPrompt

        try:
            if work.abort:
                self._llm.abort_request(work.abort)
            for request in work.add:
                prompt = TokensPrompt(prompt_token_ids=request.ids)
                # KV of other weights must not be found: each version has its own prefix cache.
                prompt["cache_salt"] = f"{self._version.lineage}.{self._version.step}"
                self._llm.add_request(
                    request.id,
                    prompt,
                    SamplingParams(
                        temperature=request.temperature,
                        max_tokens=request.max_tokens,
                        stop_token_ids=list(request.stop_ids),
                        ignore_eos=True,
                        seed=request.seed,
                        logprobs=0,
                        detokenize=False,
                    ),
                )
            reached("prefill" if work.add else "decode")
            outputs = self._llm.step() if self._llm.has_unfinished_requests() else []
            self._kv_share_seen = self._llm.engine_core.engine_core.scheduler.kv_cache_manager.usage
            return Stepped(outputs, self._version)
        except Exception as error:
            # The boundary to vLLM: whatever it raises, its state is unknown afterwards.
            log.exception("vLLM failed in a step")
            raise EngineFailed(f"vLLM failed in a step: {type(error).__name__}: {error}") from error

    def _load_weights(self, version: WeightsVersion, pairs: list[tuple[str, Any]]) -> None:
        names = {name: tensor for name, tensor in pairs}
        if self._llm.vllm_config.model_config.hf_config.tie_word_embeddings and _HEAD not in names:
            # vLLM keeps a packed copy of the head, and renews it only if the head is among what is loaded.
            names[_HEAD] = names[_EMBEDDING]
        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(names.items())})
        self._version = version  # on this thread: no step may see new weights under the old version's cache

    def _shut_down(self) -> None:
        self._llm.engine_core.shutdown()
        self._llm = None
