"""Benchmarks against any server that speaks OpenAI's chat completions; code runs here, in the sandbox.

The dialogue is that of rollouts, as text: the same prompts, calls in `<tool_call>` tags, results as a user's message in
`<tool_response>` tags. The tools are told in the system prompt, so the server needs no parser of its own for calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator, Sequence

import openai
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam

from actors.system.actor import seed_for
from actors.verification import Verifier
from env.interpreters import Interpreters
from env.tool_call import PYTHON_TOOL, Limits, ToolResult
from orchestration.evaluation.answers import Answer, Part, Wanted
from orchestration.recipe import RecipeError
from policies.chat_format import QUESTION_PROMPT, SYSTEM_PROMPT
from policies.dialogue import NO_ANSWER
from policies.tool_calls import CLOSE, OPEN, parse_calls, result_text, schemas_of
from policies.trajectory import Finish, Verdict
from policies.verification import extract_answer, judge_at_sight

AT_ONCE = 32
TOOLS_PROMPT = (
    SYSTEM_PROMPT
    + "\n\n# Tools\nYou may call these functions:\n<tools>\n"
    + "\n".join(json.dumps(tool) for tool in schemas_of((PYTHON_TOOL,)))
    + f'\n</tools>\nTo call one, write {OPEN}\n{{"name": its name, "arguments": {{...}}}}\n{CLOSE}'
)


@contextlib.contextmanager
def failures_told(url: str) -> Iterator[None]:
    """Make `RecipeError`s of what a server does wrong."""
    try:
        yield
    except openai.APIConnectionError as error:
        raise RecipeError(f"the server at {url} can't be reached: {error}") from error
    except openai.APIStatusError as error:
        raise RecipeError(f"the server at {url} refuses: {error.message}") from error
    except json.JSONDecodeError as error:
        raise RecipeError(f"the server at {url} answers no JSON: {error}") from error


async def only_model(client: AsyncOpenAI, option: str) -> str:
    """The name of the only model that a server lists. Raises `RecipeError` that names `option` if there is another
    number of them.
    """
    names = [model.id async for model in client.models.list()]
    if len(names) != 1:
        raise RecipeError(
            f"the server at {client.base_url} serves {', '.join(names) or 'no model'}; choose one with {option}"
        )
    return names[0]


def said_in(done: ChatCompletion, url: str) -> tuple[str, str]:
    """Text and finish reason of an answer. Raises `RecipeError` for a server's answer that is none.

    Half of a surrogate pair, which JSON can hold and no file of answers, becomes a question mark.
    """
    if not isinstance(done, ChatCompletion) or not done.choices:  # the client takes any JSON, or none, for an answer
        raise RecipeError(f"the server at {url} answers something else than a chat completion: {str(done)[:200]!r}")
    choice = done.choices[0]
    return (choice.message.content or "").encode(errors="replace").decode(), choice.finish_reason


class Server:
    """A model behind a URL.

    Args:
        url: up to and including `/v1`.
        name: the served model's name; None takes the only one that the server lists.
        workers: programs that run at once.
    """

    def __init__(self, url: str, name: str | None, key: str, workers: int = 2, seed: int = 0) -> None:
        self._client = AsyncOpenAI(base_url=url, api_key=key, max_retries=4, timeout=3600)
        self._url, self._name, self._seed = url, name, seed
        self._interpreters = Interpreters(Limits(), workers=workers, run_id="greenroom-evaluate")
        self._verifier = Verifier(workers=1)

    async def play(self, wanted: Sequence[Wanted], keep: Callable[[Answer], None]) -> None:
        """Play what is wanted; `keep` takes each answer when it is there.

        Raises `RecipeError` if the server can't be reached, or serves none or several models and no name was given.
        """
        places = asyncio.Semaphore(AT_ONCE)

        async def one(each: Wanted) -> None:
            async with places:
                answer = await _Dialogue(self, each).to_the_end()
            keep(answer)

        try:
            with failures_told(self._url):
                self._name = self._name or await only_model(self._client, "--served-model")
                await asyncio.gather(*[one(each) for each in wanted])
        finally:
            await self._interpreters.close()
            await self._verifier.close()
            await self._client.close()

    async def complete(
        self, wanted: Wanted, turn: int, messages: list[ChatCompletionMessageParam], max_tokens: int
    ) -> tuple[str, str, int]:
        """One model turn: text, finish reason, tokens."""
        assert self._name is not None, "`play` chooses the model"
        done = await self._client.chat.completions.create(
            model=self._name,
            messages=messages,
            temperature=wanted.settings.temperature,
            max_tokens=max_tokens,
            seed=seed_for(self._seed, f"{wanted.id}#{turn}") >> 1,
        )
        used = done.usage.completion_tokens if done.usage else 0
        return *said_in(done, self._url), used

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
        self._tokens = self._turns = 0
        self._results: list[ToolResult] = []

    async def to_the_end(self) -> Answer:
        messages = self._opening()
        while True:
            turn, left = self._turns, self._limits.max_tokens - self._tokens
            said, why, used = await self._server.complete(self._wanted, turn, messages, left)
            self._tokens += used
            self._turns += 1
            self._parts.append(Part(who="model", text=said))
            if why == "length":
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

    def _ended(self, finish: Finish, verdict: Verdict) -> Answer:
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
        )
