"""The real vLLM, in process: what it samples, what it says of it, and what new weights do to it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from actors.engines.engine import SampleRequest, SampleResult
from actors.engines.vllm_engine import VllmEngine
from policies.trajectory import WeightsVersion
from tests.actors.engines.conftest import KV_TOKENS, SEQUENCE_TOKENS

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

PROMPT = [5, 6, 7, 8, 9, 10]
STOP = 3
_count = 0


def request(ids: list[int] = PROMPT, *, max_tokens: int = 24, temperature: float = 1.0, seed: int = 0) -> SampleRequest:
    global _count
    _count += 1
    return SampleRequest(
        id=f"r{_count}", ids=ids, max_tokens=max_tokens, temperature=temperature, stop_ids=(STOP,), seed=seed
    )


def reference_logprobs(model, prompt: list[int], result: SampleResult, temperature: float) -> torch.Tensor:
    """Log-probabilities of a continuation by transformers, on its own."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + result.ids])).logits[0, len(prompt) - 1 : -1] / temperature
    return logits.log_softmax(-1).gather(-1, torch.tensor(result.ids)[:, None])[:, 0]


@pytest.fixture(scope="module")
def reference(tiny_model: Path):
    return AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()


async def test_capacity_is_what_was_asked_for_in_whole_blocks(engine: VllmEngine) -> None:
    capacity = engine.capacity()
    assert (capacity.kv_tokens, capacity.max_sequence_tokens) == (KV_TOKENS, SEQUENCE_TOKENS)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
async def test_logprobs_are_those_of_the_distribution_sampled_from(engine, reference, temperature: float) -> None:
    requests = [request([*PROMPT, 11 + index], temperature=temperature, seed=index) for index in range(16)]
    results = await asyncio.gather(*[engine.sample(each) for each in requests])
    for asked, result in zip(requests, results, strict=True):
        expected = reference_logprobs(reference, asked.ids, result, temperature)
        assert torch.allclose(torch.tensor(result.logprobs), expected, atol=1e-3)


async def test_a_turn_ends_with_its_stop_token_or_at_its_length(engine: VllmEngine) -> None:
    results = await asyncio.gather(*[engine.sample(request(seed=index, max_tokens=100)) for index in range(24)])
    assert {result.finish for result in results} == {"stop", "length"}
    for result in results:
        assert (result.ids[-1] == STOP) == (result.finish == "stop")
        assert STOP not in result.ids[:-1] and len(result.ids) == len(result.logprobs) <= 100


async def test_the_same_seed_samples_the_same_turn(engine: VllmEngine) -> None:
    first, again, other = [await engine.sample(request(seed=seed)) for seed in (7, 7, 8)]
    assert first.ids == again.ids != other.ids


async def test_a_request_that_can_never_fit_is_refused_with_the_numbers(engine: VllmEngine) -> None:
    with pytest.raises(ValueError, match=rf"6 \+ {SEQUENCE_TOKENS} tokens exceed the engine's {SEQUENCE_TOKENS}"):
        await engine.sample(request(max_tokens=SEQUENCE_TOKENS))


async def test_prompts_of_more_tokens_than_a_step_was_given_are_sampled(engine: VllmEngine) -> None:
    """On CPU a chunked prompt would make vLLM fail: it rewinds the generator of the request's seed."""
    prompts = [[index % 7, *[(index * position) % 90 for position in range(230)]] for index in range(8)]
    results = await asyncio.gather(*[engine.sample(request(prompt, max_tokens=4)) for prompt in prompts])
    assert engine.capacity().max_step_tokens >= sum(map(len, prompts)) > 1024
    assert all(1 <= len(result.ids) <= 4 for result in results)


async def test_an_aborted_request_answers_and_holds_nothing(engine: VllmEngine) -> None:
    begun = asyncio.Event()
    asked = request(max_tokens=200)._replace(stop_ids=(), on_tokens=lambda ids, logprobs: begun.set())
    running = asyncio.ensure_future(engine.sample(asked))
    await begun.wait()
    await engine.abort(asked.id)
    assert (await running).finish == "aborted"
    await engine.sample(request())
    assert engine.usage().running == 0 and engine.usage().kv_used_tokens == 0


async def test_kv_use_is_booked_while_it_is_held(engine: VllmEngine) -> None:
    before, start = engine.usage(), time.monotonic()
    await asyncio.gather(*[engine.sample(request(seed=index, max_tokens=60)) for index in range(8)])
    used, seconds = engine.usage().kv_token_seconds - before.kv_token_seconds, time.monotonic() - start
    assert 0 < used <= KV_TOKENS * seconds
    await asyncio.sleep(0.2)
    assert engine.usage().kv_token_seconds - before.kv_token_seconds == pytest.approx(used), "nothing is held any more"


async def test_pausing_is_not_stepping(engine: VllmEngine) -> None:
    await engine.pause()
    running = asyncio.ensure_future(engine.sample(request()))
    await asyncio.sleep(0.2)
    assert not running.done()
    await engine.resume()
    assert (await running).ids


async def test_new_weights_are_what_samples_from_then_on(engine: VllmEngine, reference) -> None:
    """The head is tied and left out, as checkpoints do; a cached prefix of the old weights must not be found."""
    long_prompt = PROMPT * 12
    await engine.sample(request(long_prompt))
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)) * 0.05)
    weights = {name: tensor for name, tensor in reference.state_dict().items() if name != "lm_head.weight"}
    await engine.update_weights(WeightsVersion(0, 1), weights.items())
    result = await engine.sample(request(long_prompt))
    assert result.version == WeightsVersion(0, 1)
    expected = reference_logprobs(reference, long_prompt, result, 1.0)
    assert torch.allclose(torch.tensor(result.logprobs), expected, atol=1e-3)


async def test_new_weights_in_the_middle_of_a_turn_keep_what_was_sampled(engine: VllmEngine, reference) -> None:
    """The turn goes on with the KV that it has; what the old weights sampled keeps their log-probabilities."""
    asked = [request([*PROMPT, 11 + index], seed=index, max_tokens=200) for index in range(8)]
    half = asyncio.Event()
    asked = [each._replace(stop_ids=(), on_tokens=lambda ids, logprobs: half.set()) for each in asked]
    before = {name: tensor.clone() for name, tensor in reference.state_dict().items()}
    running = [asyncio.ensure_future(engine.sample(each)) for each in asked]
    await half.wait()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.05)
    after = reference.state_dict()
    await engine.update_weights(
        WeightsVersion(0, 2), {name: tensor for name, tensor in after.items() if name != "lm_head.weight"}.items()
    )
    results = await asyncio.gather(*running)
    reference.load_state_dict(before)
    for each, result in zip(asked, results, strict=True):
        ((old, count),) = result.earlier
        assert (old, result.version) == (WeightsVersion(0, 1), WeightsVersion(0, 2)) and 0 < count < 200
        expected = reference_logprobs(reference, each.ids, result, 1.0)
        said = torch.tensor(result.logprobs)
        assert torch.allclose(said[:count], expected[:count], atol=1e-3)
        assert not torch.allclose(said[count:], expected[count:], atol=1e-1)
