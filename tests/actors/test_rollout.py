"""Rollouts on real actors of the balancer and the archive, with a scripted generator and environment."""

import asyncio
import json
from pathlib import Path

import pytest

from actors.archive import ArchiveActor
from actors.balancer import BalancerActor
from actors.messages import (
    AnswerVerified,
    CallFinished,
    DescribeArchive,
    DescribeBalancer,
    EndSessions,
    ForgetRollout,
    JoinGenerator,
    RunCall,
    RunRollout,
    SampleTurn,
    SessionSoFar,
    TurnSampled,
    VerifyAnswer,
)
from actors.rollout import RolloutActor
from actors.storage.reader import read_archive
from actors.system.actor import Actor, ActorLost, ActorRef, HandlerFailed, handles
from actors.tokenizer import PromptOptions, load_chat_format
from env.tool_call import JUPYTER_TOOL, PYTHON_TOOL, Status, ToolResult
from orchestration.tiny_model import write_tokenizer
from policies import tokens
from policies.balancing import BalancerOptions, Capacity
from policies.dialogue import DialogueLimits
from policies.trajectory import Problem, Verdict, WeightsVersion
from tests.support.in_process_stage import InProcessStage

VERSION = WeightsVersion(0, 5)
CALL = (
    f"<tool_call>\n{json.dumps({'name': PYTHON_TOOL, 'arguments': {'code': 'print(6*7)', 'input': ''}})}\n</tool_call>"
)
ANSWER = "</reason><answer>\\boxed{42}</answer>"


class ScriptedGenerator(Actor):
    """Says the same words in each dialogue; keeps histories as a real generator does."""

    def __init__(self, chat, words: list[str], fail: list[BaseException] | None = None) -> None:
        self.chat, self.words, self.fail = chat, words, fail or []
        self.histories: dict[str, bytes] = {}
        self.requests: list[SampleTurn] = []

    @handles(SampleTurn)
    async def on_sample(self, request: SampleTurn) -> TurnSampled:
        self.requests.append(request)
        if self.fail:
            raise self.fail.pop()
        held = self.histories.get(request.lease.rollout, b"")
        if tokens.count(held) < request.known:
            return TurnSampled(finish="history_missing", version=VERSION)
        ids = tokens.pack_ids(self.chat.model_turn(self.words[request.turn]))
        self.histories[request.lease.rollout] = held[: 4 * request.known] + request.ids + ids
        return TurnSampled(
            ids=ids, logprobs=tokens.pack_floats([-1.0] * tokens.count(ids)), finish="stop", version=VERSION
        )

    @handles(ForgetRollout)
    async def on_forget(self, message: ForgetRollout) -> None:
        self.histories.pop(message.rollout, None)


class ScriptedEnvironment(Actor):
    """Answers each call with the next of the given results; the last one for ever."""

    def __init__(self, *statuses: Status) -> None:
        self.statuses, self.calls = list(statuses), 0

    @handles(RunCall)
    async def on_run(self, request: RunCall) -> CallFinished:
        self.calls += 1
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        return CallFinished(result=ToolResult(id=request.call.id, status=status, stdout="42\n"))


class SessionEnvironment(ScriptedEnvironment):
    """Notes the sessions that cells come with, and those that are over."""

    def __init__(self) -> None:
        super().__init__("success")
        self.cells: list[RunCall] = []
        self.over: list[str] = []

    @handles(RunCall)
    async def on_run(self, request: RunCall) -> CallFinished:
        self.cells.append(request)
        return CallFinished(result=ToolResult(id=request.call.id, status="success", stdout="42\n"))

    @handles(EndSessions)
    async def on_end(self, request: EndSessions) -> None:
        self.over += request.sessions


class VerifyingEnvironment(ScriptedEnvironment):
    """Finds every answer right, or is lost whenever it is asked; notes the leases that are out meanwhile."""

    def __init__(self, *, lost: bool = False) -> None:
        super().__init__("success")
        self.lost, self.asked, self.leases = lost, list[VerifyAnswer](), list[int]()

    @handles(VerifyAnswer)
    async def on_verify(self, request: VerifyAnswer) -> AnswerVerified:
        self.asked.append(request)
        await asyncio.sleep(0.01)  # tells are on their way
        status = await self.port.ask(ActorRef("balancer"), DescribeBalancer())
        self.leases.append(sum(load.sessions for load in status.loads))
        if self.lost:
            raise ActorLost("planted")
        return AnswerVerified(verdict=Verdict(correct=True, extracted=request.extracted, reason="right"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder, 512)
    return folder


def request(name: str = "rl/0/0/0", gold: str = "42") -> RunRollout:
    return RunRollout(
        id=name,
        group="rl/0/0",
        sample=0,
        stage="rl",
        step=0,
        problem=Problem(id="p", question="What is 6 times 7?", gold=gold),
        limits=DialogueLimits(max_tokens=400, max_turns=4, max_turn_tokens=100),
        temperature=1.0,
    )


async def staged(stage: InProcessStage, model: Path, folder: Path, *environments: Actor, words=(CALL, ANSWER), fail=()):
    chat = load_chat_format(str(model), PromptOptions(instructions=False))
    balancer = await stage.host("balancer", BalancerActor(options=BalancerOptions(strategy="worst_case")))
    archive = await stage.host("archive", ArchiveActor(folder=str(folder)))
    generator = ScriptedGenerator(chat, list(words), list(fail))
    await stage.host("generator-0", generator)
    capacity = Capacity(generator="generator-0", incarnation=0, kv_tokens=416, block_tokens=32, max_sequence_tokens=416)
    await stage.port.ask(balancer, JoinGenerator(capacity=capacity))
    refs = [await stage.host(f"environment-{i}", each) for i, each in enumerate(environments)]
    rollout = RolloutActor(
        model=str(model),
        prompt=PromptOptions(instructions=False),
        run_seed=0,
        balancer=balancer,
        environments=refs,
        archive=archive,
    )
    return await stage.host("rollout-0", rollout), generator


async def leases(stage: InProcessStage) -> int:
    await asyncio.sleep(0.01)  # tells are on their way
    status = await stage.port.ask(ActorRef("balancer"), DescribeBalancer())
    return sum(load.sessions for load in status.loads) + status.waiting


async def test_a_dialogue_is_played_stored_and_answered(model: Path, tmp_path: Path) -> None:
    async with InProcessStage() as stage:
        rollout, generator = await staged(stage, model, tmp_path, ScriptedEnvironment("success"))
        trajectory = (await stage.port.ask(rollout, request())).trajectory
        assert (trajectory.reward, trajectory.turns, trajectory.generator) == (1.0, 2, "generator-0")
        assert [record.result.status for record in trajectory.calls] == ["success"]
        assert await leases(stage) == 0 and generator.histories == {}
        await stage.port.ask(ActorRef("archive"), DescribeArchive())
        assert list(read_archive(tmp_path)) == [trajectory]


async def test_a_rollouts_session_ends_with_it(model: Path, tmp_path: Path) -> None:
    cell = json.dumps({"name": JUPYTER_TOOL, "arguments": {"code": "6 * 7"}})
    turns = (f"<tool_call>\n{cell}\n</tool_call>" * 2, f"<tool_call>\n{cell}\n</tool_call>", ANSWER)
    async with InProcessStage() as stage:
        environment = SessionEnvironment()
        rollout, _ = await staged(stage, model, tmp_path, environment, words=turns)
        asked = request()
        limits = asked.limits.model_copy(update={"tools": (JUPYTER_TOOL,)})
        trajectory = (await stage.port.ask(rollout, asked.model_copy(update={"limits": limits}))).trajectory
        assert [record.call.session for record in trajectory.calls] == [asked.id] * 3, "archives know no attempts"
        first, second, third = environment.cells
        (name,) = {request.call.session for request in environment.cells}
        assert name.startswith(f"{asked.id}@rollout-0-")
        so_far = [request.session for request in environment.cells]
        assert so_far[0] == SessionSoFar(last_call="", cells=())
        assert so_far[1:] == [SessionSoFar(last_call=each.call.id, cells=None) for each in (first, second)]
        assert third.call.id == "rl/0/0/0/1/0"
        await asyncio.sleep(0.01)
        assert environment.over == [name]


async def test_a_turn_sends_only_what_is_new(model: Path, tmp_path: Path) -> None:
    async with InProcessStage() as stage:
        rollout, generator = await staged(stage, model, tmp_path, ScriptedEnvironment("success"))
        trajectory = (await stage.port.ask(rollout, request())).trajectory
        first, second = generator.requests
        assert (first.known, second.known) == (0, tokens.count(first.ids) + tokens.count(trajectory.spans[1].ids))
        assert second.ids == trajectory.spans[2].ids
        assert first.seed != second.seed


async def test_a_generator_without_the_history_gets_all_of_it(model: Path, tmp_path: Path) -> None:
    class Forgetful(ScriptedEnvironment):
        async def handle(self, message):
            generator.histories.clear()
            return await super().handle(message)

    async with InProcessStage() as stage:
        rollout, generator = await staged(stage, model, tmp_path, Forgetful("success"))
        trajectory = (await stage.port.ask(rollout, request())).trajectory
        assert trajectory.reward == 1.0
        assert [each.known for each in generator.requests] == [0, generator.requests[1].known, 0]
        whole = tokens.concatenate(span.ids for span in trajectory.spans[:3])
        assert generator.requests[-1].ids == whole


async def test_a_lost_generator_costs_a_new_lease_and_nothing_else(model: Path, tmp_path: Path) -> None:
    async with InProcessStage() as stage:
        rollout, generator = await staged(
            stage, model, tmp_path, ScriptedEnvironment("success"), fail=[ActorLost("generator-0 died")]
        )
        trajectory = (await stage.port.ask(rollout, request())).trajectory
        assert trajectory.reward == 1.0 and len(generator.requests) == 3
        assert await leases(stage) == 0


async def test_lease_is_returned_when_the_rollout_raises(model: Path, tmp_path: Path) -> None:
    async with InProcessStage() as stage:
        rollout, _ = await staged(stage, model, tmp_path, ScriptedEnvironment("success"), fail=[ValueError("planted")])
        with pytest.raises(HandlerFailed, match="planted"):
            await stage.port.ask(rollout, request())
        assert await leases(stage) == 0


async def test_a_call_that_one_sandbox_failed_is_run_in_another(model: Path, tmp_path: Path) -> None:
    async with InProcessStage() as stage:
        failing, working = ScriptedEnvironment("sandbox_failure"), ScriptedEnvironment("success")
        rollout, _ = await staged(stage, model, tmp_path, failing, working)
        trajectories = [(await stage.port.ask(rollout, request(f"r{i}"))).trajectory for i in range(4)]
        assert all(each.reward == 1.0 for each in trajectories)
        assert failing.calls >= 1 and working.calls == 4


async def test_a_call_that_every_sandbox_failed_voids_the_rollout(model: Path, tmp_path: Path) -> None:
    async with InProcessStage() as stage:
        rollout, _ = await staged(stage, model, tmp_path, ScriptedEnvironment("sandbox_failure"))
        trajectory = (await stage.port.ask(rollout, request())).trajectory
        assert trajectory.finish == "sandbox_failure"
        assert await leases(stage) == 0


async def test_an_answer_that_takes_mathematics_is_verified_by_an_environment_and_without_a_lease(
    model: Path, tmp_path: Path
) -> None:
    async with InProcessStage() as stage:
        environment = VerifyingEnvironment()
        rollout, _ = await staged(stage, model, tmp_path, environment)
        trajectory = (await stage.port.ask(rollout, request(gold="\\sqrt{1764}"))).trajectory
        assert environment.asked == [VerifyAnswer(extracted="42", gold="\\sqrt{1764}")]
        assert (trajectory.reward, trajectory.verdict.reason, trajectory.generator) == (1.0, "right", "generator-0")
        assert environment.leases == [0]


async def test_an_integer_gold_is_judged_without_any_message(model: Path, tmp_path: Path) -> None:
    async with InProcessStage() as stage:
        environment = VerifyingEnvironment()
        rollout, _ = await staged(stage, model, tmp_path, environment)
        trajectory = (await stage.port.ask(rollout, request(gold="41"))).trajectory
        assert (trajectory.reward, trajectory.verdict.reason, environment.asked) == (0.0, "wrong", [])


async def test_an_answer_whose_environment_died_is_verified_by_another(model: Path, tmp_path: Path) -> None:
    async with InProcessStage() as stage:
        dying, working = VerifyingEnvironment(lost=True), VerifyingEnvironment()
        rollout, _ = await staged(stage, model, tmp_path, working, dying)
        asks = [stage.port.ask(rollout, request(f"r{i}", gold="\\sqrt{1764}")) for i in range(4)]
        assert [(await ask).trajectory.reward for ask in asks] == [1.0] * 4
        assert dying.asked and len(working.asked) == 4


async def test_an_answer_that_no_environment_can_verify_fails_the_rollout(model: Path, tmp_path: Path) -> None:
    async with InProcessStage() as stage:
        rollout, _ = await staged(stage, model, tmp_path, VerifyingEnvironment(lost=True))
        with pytest.raises(ActorLost, match="3 environments were lost"):
            await stage.port.ask(rollout, request(gold="\\sqrt{1764}"))
        assert await leases(stage) == 0


async def test_asking_again_does_not_play_twice(model: Path, tmp_path: Path) -> None:
    async with InProcessStage() as stage:
        rollout, generator = await staged(stage, model, tmp_path, ScriptedEnvironment("success"))
        both = await asyncio.gather(*[stage.port.ask(rollout, request()) for _ in range(2)])
        assert both[0] == both[1] and len(generator.requests) == 2


async def test_many_dialogues_share_a_small_cache_and_all_end(model: Path, tmp_path: Path) -> None:
    async with InProcessStage() as stage:
        rollout, _ = await staged(stage, model, tmp_path, ScriptedEnvironment("success"))
        done = await asyncio.gather(*[stage.port.ask(rollout, request(f"r{i}")) for i in range(40)])
        assert sum(each.trajectory.queued for each in done) == 39, "one fits at a time"
        assert await leases(stage) == 0
