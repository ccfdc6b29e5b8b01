"""vLLM's own V1 scheduler, without a model: the only module outside `actors.engines.vllm_engine` that imports vLLM."""

from __future__ import annotations

import json
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from vllm import SamplingParams
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from policies.batching_records import BatchingLimits, Turn
from tests.support.batching_traces import StepRecord

VOCABULARY, LONGEST = 32_000, 8192


def write_config(folder: Path) -> Path:
    """The least of a model's folder that vLLM asks for."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": LONGEST,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def token(chain: str, index: int) -> int:
    """Token `index` of a chain: chains differ, and each is always the same."""
    return int.from_bytes(blake2b(f"{chain}/{index}".encode(), digest_size=4).digest(), "little") % VOCABULARY


def token_of(turn: Turn, index: int) -> int:
    chain = turn.prompt if index < turn.prompt_tokens else f"{turn.prompt}/{turn.sequence}"
    return token(str(chain), index)


class VllmScheduler:
    """`Scheduler` as `tests.support.batching_traces.play` drives it; a stand-in for the model says what is sampled."""

    def __init__(self, limits: BatchingLimits, model: Path) -> None:
        self._turns: dict[str, Turn] = {}
        self._admissions = self._preemptions = 0
        config = VllmConfig(
            model_config=ModelConfig(
                model=str(model), tokenizer=str(model), skip_tokenizer_init=True, dtype="float32", max_model_len=LONGEST
            ),
            cache_config=CacheConfig(block_size=limits.block_tokens, enable_prefix_caching=limits.prefix_caching),
            scheduler_config=SchedulerConfig(
                max_num_seqs=limits.max_running,
                max_num_batched_tokens=limits.max_step_tokens,
                max_model_len=LONGEST,
                enable_chunked_prefill=True,
                is_encoder_decoder=False,
                async_scheduling=False,
            ),
            device_config=DeviceConfig("cpu"),
        )
        blocks = limits.kv_blocks + 1  # one is vLLM's null block
        config.cache_config.num_gpu_blocks = blocks
        spec = FullAttentionSpec(block_size=limits.block_tokens, num_kv_heads=1, head_size=64, dtype=torch.float32)
        self._scheduler = Scheduler(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(
                num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
            ),
            structured_output_manager=StructuredOutputManager(config),
            block_size=limits.block_tokens,
        )
        init_none_hash(sha256)
        self._hasher: Any = None
        if limits.prefix_caching:
            self._hasher = get_request_block_hasher(limits.block_tokens, sha256)

    def add(self, turn: Turn) -> None:
        self._turns[turn.id] = turn
        self._scheduler.add_request(
            Request(
                request_id=turn.id,
                prompt_token_ids=[token_of(turn, index) for index in range(turn.length)],
                sampling_params=SamplingParams(max_tokens=turn.new_tokens, ignore_eos=True),
                pooling_params=None,
                block_hasher=self._hasher,
            )
        )

    def abort(self, request_id: str) -> None:
        self._scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)

    def step(self, most: int = 1) -> tuple[int, StepRecord]:
        scheduler = self._scheduler
        before = {request.request_id for request in scheduler.running}
        output = scheduler.schedule()
        self._preemptions += len(output.preempted_req_ids or ())
        self._admissions += len({request.request_id for request in scheduler.running} - before)
        scheduled = list(output.num_scheduled_tokens)
        sampled = []
        for request_id in scheduled:
            request = scheduler.requests[request_id]
            complete = request.num_computed_tokens >= request.num_tokens
            sampled.append([token_of(self._turns[request_id], request.num_tokens)] if complete else [])
        scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=scheduled,
                req_id_to_index={request_id: index for index, request_id in enumerate(scheduled)},
                sampled_token_ids=sampled,
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
            ),
        )
        pool = scheduler.kv_cache_manager.block_pool
        return 1, StepRecord(
            running=tuple(request.request_id for request in scheduler.running),
            waiting=scheduler.get_request_counts()[1],
            admissions=self._admissions,
            preemptions=self._preemptions,
            used_blocks=pool.num_gpu_blocks - 1 - pool.get_num_free_blocks(),
            finished=tuple(id for id in scheduled if id not in scheduler.requests),
        )
