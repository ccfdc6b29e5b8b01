"""The simulated engine keeps the engine protocol, and its time is that of the steps it would have taken."""

from __future__ import annotations

import asyncio

import pytest

from actors.engines.engine import SampleRequest
from actors.engines.simulated_engine import SimulatedEngine, SimulatedOptions
from policies.batching_records import BatchingLimits
from policies.scripted import CountedTokens, Rollout, Script, ScriptedCall, ScriptedTurn
from policies.step_cost import StepCost
from policies.trajectory import VersionRun, WeightsVersion
from tests.support.manual_clock import ManualClock

COST = StepCost(base=1.0, sequence=0.1, context_token=0.0, prefill_token=0.01, prefill_pair=0.0)
CALL = ScriptedCall(run_seconds=0.3, status="success", response_tokens=12)


class Turns(Script):
    """A script: the length of every turn of a rollout is in its name."""

    def rollout(self, sequence: str) -> Rollout:
        return Rollout(1, (ScriptedTurn(int(sequence.split("-")[1]), calls=(CALL,)),) * 8)


def make_engine(clock: ManualClock, kv_blocks: int = 1000, update_seconds: float = 0.0) -> SimulatedEngine:
    options = SimulatedOptions(
        limits=BatchingLimits(kv_blocks=kv_blocks),
        max_sequence_tokens=4096,
        cost=COST,
        update_seconds=update_seconds,
    )
    return SimulatedEngine(options=options, script=Turns(), clock=clock)


def request(sequence: str, length: int = 100, max_tokens: int = 1000, turn: int = 0) -> SampleRequest:
    return SampleRequest(
        id=f"{sequence}#{turn}",
        ids=[],
        max_tokens=max_tokens,
        temperature=1.0,
        stop_ids=(),
        seed=0,
        counted=CountedTokens(prompt=sequence, prompt_tokens=100, sequence=sequence, turns=turn, length=length),
    )


async def test_a_turn_takes_the_time_of_its_prefill_and_its_steps() -> None:
    clock = ManualClock()
    engine = make_engine(clock)
    await engine.start()
    sampling = asyncio.ensure_future(engine.sample(request("a-11")))
    await clock.run()
    result = await sampling
    assert result.turn == ScriptedTurn(11, calls=(CALL,)) and result.finish == "stop" and result.ids == []
    assert clock.now_ns() == pytest.approx((1.0 + 100 * 0.01 + 10 * 1.1) * 1e9)
    usage = engine.usage()
    assert (usage.running, usage.generated_tokens, usage.kv_used_tokens) == (0, 11, 0)
    assert usage.busy_seconds == pytest.approx(13.0)


async def test_max_tokens_cuts_a_turn_before_its_calls() -> None:
    clock = ManualClock()
    engine = make_engine(clock)
    sampling = asyncio.ensure_future(engine.sample(request("a-50", max_tokens=20)))
    await clock.run()
    result = await sampling
    assert result.finish == "length" and result.turn == ScriptedTurn(20)


async def test_a_request_waits_for_the_step_under_way_and_no_longer() -> None:
    clock = ManualClock()
    engine = make_engine(clock)
    first = asyncio.ensure_future(engine.sample(request("a-101")))
    await clock.run(until_seconds=2.0 + 2.5 * 1.1)  # in the middle of the third decoding step
    second = asyncio.ensure_future(engine.sample(request("b-1")))
    await clock.run(until_seconds=2.0 + 3 * 1.1 + 2.0)
    assert not second.done(), "its prefill step, which the first one shares, takes 2.1 s"
    await clock.run(until_seconds=2.0 + 3 * 1.1 + 2.1)
    assert second.done() and not first.done()
    await clock.run()
    assert (await first).turn == ScriptedTurn(101, calls=(CALL,))
    assert clock.now_ns() == pytest.approx((2.0 + 99 * 1.1 + 2.1) * 1e9)


async def test_the_next_turn_finds_its_history_in_the_cache() -> None:
    clock = ManualClock()
    engine = make_engine(clock)
    for turn, length in enumerate((100, 140)):
        sampling = asyncio.ensure_future(engine.sample(request("a-28", length=length, turn=turn)))
        await clock.run()
        await sampling
    assert engine.counts().hit_tokens == 112, "127 tokens had been computed: 7 full blocks of 16"
    updating = asyncio.ensure_future(engine.update_weights(WeightsVersion(0, 1), []))
    await clock.run()
    await updating
    sampling = asyncio.ensure_future(engine.sample(request("a-28", length=180, turn=2)))
    await clock.run()
    assert (await sampling).version == WeightsVersion(0, 1)
    assert engine.counts().hit_tokens == 112, "KV of other weights is not found"


async def test_aborting_ends_a_request_at_once_and_frees_its_blocks_with_the_step() -> None:
    clock = ManualClock()
    engine = make_engine(clock)
    aborted = asyncio.ensure_future(engine.sample(request("a-500")))
    await clock.run(until_seconds=10.0)
    await engine.abort("a-500#0")
    assert (await aborted).finish == "aborted" and engine.usage().kv_used_tokens > 0
    again = asyncio.ensure_future(engine.sample(request("a-500")))
    await clock.run(until_seconds=13.0)
    assert not again.done() and engine.usage().running == 1
    await clock.run()
    assert (await again).turn == ScriptedTurn(500, calls=(CALL,))
    assert engine.usage().kv_used_tokens == 0


async def test_a_cancelled_request_leaves_the_engine() -> None:
    clock = ManualClock()
    engine = make_engine(clock)
    sampling = asyncio.ensure_future(engine.sample(request("a-500")))
    await clock.run(until_seconds=10.0)
    sampling.cancel()
    await clock.run()
    assert engine.usage().running == 0 and clock.now_ns() < 20e9


async def test_pausing_is_not_stepping() -> None:
    clock = ManualClock()
    engine = make_engine(clock)
    sampling = asyncio.ensure_future(engine.sample(request("a-11")))
    await clock.run(until_seconds=2.5)
    await engine.pause()
    await clock.run(until_seconds=100.0)
    assert not sampling.done() and engine.usage().generated_tokens == 2, "the step under way was finished"
    await engine.resume()
    await clock.run()
    assert sampling.done() and clock.now_ns() == pytest.approx((100.0 + 9 * 1.1) * 1e9)


async def test_new_weights_hold_the_steps_for_as_long_as_they_take() -> None:
    clock = ManualClock()
    engine = make_engine(clock, update_seconds=50.0)
    sampling = asyncio.ensure_future(engine.sample(request("a-11")))
    await clock.run(until_seconds=2.5)
    updating = asyncio.ensure_future(engine.update_weights(WeightsVersion(0, 1), []))
    await clock.run()
    await updating
    assert (await sampling).version == WeightsVersion(0, 1)
    assert clock.now_ns() == pytest.approx((2.0 + 1.1 + 50.0 + 9 * 1.1) * 1e9)


async def test_a_turn_that_new_weights_come_into_says_which_sampled_what() -> None:
    clock = ManualClock()
    engine = make_engine(clock, update_seconds=50.0)
    sampling = asyncio.ensure_future(engine.sample(request("a-11")))
    await clock.run(until_seconds=2.5)  # the prefill gave a token after 2 s, the step under way gives the second
    updating = asyncio.ensure_future(engine.update_weights(WeightsVersion(0, 1), []))
    await clock.run(until_seconds=55.0)
    await updating
    updating = asyncio.ensure_future(engine.update_weights(WeightsVersion(0, 2), []))
    await clock.run()
    await updating
    result = await sampling
    assert result.earlier == (VersionRun(WeightsVersion(0, 0), 2), VersionRun(WeightsVersion(0, 1), 2))
    assert result.version == WeightsVersion(0, 2)


async def test_what_comes_while_weights_are_taken_finds_no_kv_of_the_old_ones() -> None:
    clock = ManualClock()
    engine = make_engine(clock, update_seconds=50.0)
    first = asyncio.ensure_future(engine.sample(request("a-11")))
    await clock.run()
    updating = asyncio.ensure_future(engine.update_weights(WeightsVersion(0, 1), []))
    await clock.run(until_seconds=30.0)
    second = asyncio.ensure_future(engine.sample(request("a-11", length=111, turn=1)))
    await clock.run()
    await asyncio.gather(first, updating, second)
    assert second.result().earlier == () and second.result().version == WeightsVersion(0, 1)
    assert engine.counts().hit_tokens == 0


async def test_kv_is_booked_over_time() -> None:
    clock = ManualClock()
    engine = make_engine(clock)
    sampling = asyncio.ensure_future(engine.sample(request("a-1000", max_tokens=1000)))
    await clock.run()
    await sampling
    seconds = clock.now_ns() / 1e9
    assert engine.usage().kv_token_seconds / seconds == pytest.approx(600, rel=0.05), "it grows from 100 to 1,100"


async def test_what_it_cannot_do_is_refused_with_the_numbers() -> None:
    engine = make_engine(ManualClock(), kv_blocks=10)
    with pytest.raises(ValueError, match=r"100 \+ 61 tokens exceed the engine's 160"):
        await engine.sample(request("a-1", max_tokens=61))
    real = SampleRequest(id="x", ids=[1, 2], max_tokens=1, temperature=1.0, stop_ids=(), seed=0)
    with pytest.raises(ValueError, match="no model to continue its 2 token ids with"):
        await engine.sample(real)
