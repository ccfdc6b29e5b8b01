"""Benchmarks against any server that speaks OpenAI's chat completions; code runs here, in the sandbox.

The dialogue is that of rollouts, as text: the same prompts, calls in `<tool_call>` tags, results as a user's message in
`<tool_response>` tags. The tools are told in the system prompt, so the server needs no parser of its own for calls.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Literal

from openai.types.chat import ChatCompletionMessageParam

from actors.system.actor import seed_for
from actors.system.together import all_done
from actors.verification import Verifier
from env.interpreters import Interpreters
from env.tool_call import PYTHON_TOOL, Limits, ToolResult
from orchestration.evaluation.answers import UNCOUNTED, Answer, Part, Wanted
from orchestration.evaluation.completions import AT_ONCE, Completion, Completions, RequestFailed
from policies.chat_format import QUESTION_PROMPT, SYSTEM_PROMPT
from policies.dialogue import NO_ANSWER
from policies.tool_calls import CLOSE, OPEN, parse_calls, result_text, schemas_of
from policies.trajectory import Finish, Verdict
from policies.verification import extract_answer, judge_at_sight

WORKERS = 2
"""Programs that run at once."""
TOOLS_PROMPT = (
    SYSTEM_PROMPT
    + "\n\n# Tools\nYou may call these functions:\n<tools>\n"
    + "\n".join(json.dumps(tool) for tool in schemas_of((PYTHON_TOOL,)))
    + f'\n</tools>\nTo call one, write {OPEN}\n{{"name": its name, "arguments": {{...}}}}\n{CLOSE}'
)


class Server:
    """A model behind a URL.

    Args:
        url: up to and including `/v1`.
        name: the served model's name; None takes the only one that the server lists.
    """

    def __init__(self, url: str, name: str | None, key: str, seed: int = 0) -> None:
        self._completions, self._seed = Completions(url, name, key, "--served-model"), seed
        self._interpreters = Interpreters(Limits(), workers=WORKERS, run_id="greenroom-evaluate")
        self._verifier = Verifier(workers=1)

    async def play(self, wanted: Sequence[Wanted], keep: Callable[[Answer], None]) -> None:
        """Play what is wanted; `keep` takes each answer when it is there.

        A dialogue in which a request fails is a failed answer. Raises `RecipeError` if the server is of no use, or
        serves none or several models and no name was given.
        """
        places = asyncio.Semaphore(AT_ONCE)

        async def one(each: Wanted) -> None:
            async with places:
                answer = await _Dialogue(self, each).to_the_end()
            keep(answer)

        try:
            await self._completions.choose_model()
            await all_done(one(each) for each in wanted)
        finally:
            await self._interpreters.close()
            await self._verifier.close()
            await self._completions.close()

    async def complete(
        self, wanted: Wanted, turn: int, messages: list[ChatCompletionMessageParam], max_tokens: int
    ) -> Completion:
        """One model turn. Raises `RequestFailed`."""
        seed = seed_for(self._seed, f"{wanted.id}#{turn}") >> 1
        return await self._completions.complete(messages, wanted.settings.temperature, max_tokens, seed)

    async def run(self, wanted: Wanted, turn: int, text: str) -> list[ToolResult]:
        """The results of a turn's calls, in order; none where there are no calls, or no tools."""
        if not wanted.limits.tools:
            return []
        requests = parse_calls(text, f"{wanted.id}/{turn}", wanted.limits.call, wanted.limits.tools)
        return [
            request.refused() if request.refusal else await self._interpreters.run(request.call) for request in requests
        ]

    async def judge(self, extracted: str | None, gold: str) -> Verdict:
        """Whether an answer is right."""
        verdict = judge_at_sight(extracted, gold)
        if verdict is not None:
            return verdict
        assert extracted is not None, "no answer is judged at sight"
        return await self._verifier.compare(extracted, gold)


class _Dialogue:
    """One sample of one problem."""

    def __init__(self, server: Server, wanted: Wanted) -> None:
        self._server, self._wanted, self._limits = server, wanted, wanted.limits
        self._parts: list[Part] = []
        self._tokens = self._turns = self._uncounted = 0
        self._results: list[ToolResult] = []

    async def to_the_end(self) -> Answer:
        try:
            return await self._play()
        except RequestFailed as error:
            return self._ended("failed", NO_ANSWER).model_copy(update={"reason": str(error)})

    async def _play(self) -> Answer:
        messages = self._opening()
        while True:
            turn, left = self._turns, self._limits.max_tokens - self._tokens
            completion = await self._server.complete(self._wanted, turn, messages, left)
            said = completion.text
            self._tokens += completion.tokens or 0
            self._uncounted += completion.tokens is None
            self._turns += 1
            self._parts.append(Part(who="model", text=said))
            if completion.finish == "length":
                return self._ended("length", NO_ANSWER)
            results = await self._server.run(self._wanted, turn, said)
            if not results:
                verdict = await self._server.judge(extract_answer(said), self._wanted.problem.gold)
                return self._ended("answered", verdict)
            self._results += results
            if any(result.status == "sandbox_failure" for result in results):
                return self._ended("sandbox_failure", NO_ANSWER)
            if self._turns >= self._limits.max_turns:
                return self._ended("turns", NO_ANSWER)
            read = [result_text(result, self._limits.tool_response_characters) for result in results]
            told = "\n".join(f"<tool_response>\n{text}\n</tool_response>" for text in read)
            self._parts.append(Part(who="tool", text=told))
            messages.append({"role": "assistant", "content": said})
            messages.append({"role": "user", "content": told})
            if self._tokens >= self._limits.max_tokens:
                return self._ended("length", NO_ANSWER)

    def _opening(self) -> list[ChatCompletionMessageParam]:
        question = self._wanted.problem.question
        if self._wanted.benchmark.style == "plain":
            return [{"role": "user", "content": question}]
        return [
            {"role": "system", "content": TOOLS_PROMPT},
            {"role": "user", "content": QUESTION_PROMPT.format(question=question)},
        ]

    def _ended(self, finish: Finish | Literal["failed"], verdict: Verdict) -> Answer:
        return self._wanted.answer(
            parts=tuple(self._parts),
            extracted=verdict.extracted,
            correct=verdict.correct,
            reason=verdict.reason,
            finish=finish,
            response_tokens=self._tokens,
            turns=self._turns,
            calls=len(self._results),
            tool_errors=sum(result.is_tool_error for result in self._results),
            figures={UNCOUNTED: self._uncounted / self._turns} if self._uncounted else {},
        )
