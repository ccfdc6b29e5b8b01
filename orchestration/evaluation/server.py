"""Benchmarks against any server that speaks OpenAI's chat completions; code runs here, in the sandbox.

The dialogue is that of rollouts, as text: the same prompts, calls in `<tool_call>` tags, results as a user's message in
`<tool_response>` tags. The tools are told in the system prompt, so the server needs no parser of its own for calls.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence

import openai
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam

from actors.verification import Verifier
from env.interpreters import Interpreters
from env.tool_call import PYTHON_TOOL, Limits, ToolResult
from orchestration.evaluation.answers import Answer, AnswerFile, Part
from orchestration.evaluation.benchmarks import Benchmark, Settings
from orchestration.evaluation.local import graded
from orchestration.recipe import RecipeError
from policies.chat_format import QUESTION_PROMPT, SYSTEM_PROMPT
from policies.dialogue import NO_ANSWER
from policies.tool_calls import CLOSE, OPEN, parse_calls, result_text, schemas_of
from policies.trajectory import Problem, Verdict
from policies.verification import extract_answer, judge_at_sight

AT_ONCE = 32
TOOL_CHARACTERS = 512
"""As `LimitOptions.tool_response_characters`."""
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
        workers: programs that run at once.
    """

    def __init__(self, url: str, name: str | None, key: str, workers: int = 2, seed: int = 0) -> None:
        self._client = AsyncOpenAI(base_url=url, api_key=key, max_retries=4, timeout=3600)
        self._url, self._name, self._seed = url, name, seed
        self._interpreters = Interpreters(Limits(), workers=workers, run_id="greenroom-evaluate")
        self._verifier = Verifier(workers=1)

    async def play(
        self, benchmarks: Sequence[tuple[Benchmark, Settings]], file: AnswerFile, advance: Callable[[Answer], None]
    ) -> None:
        """Play what the file lacks.

        Raises `RecipeError` if the server can't be reached, or serves none or several models and no name was given.
        """
        places = asyncio.Semaphore(AT_ONCE)

        async def one(benchmark: Benchmark, settings: Settings, problem: Problem, sample: int) -> None:
            async with places:
                answer = await self._answer(benchmark, settings, problem, sample)
            file.add(answer)
            advance(answer)

        try:
            await self._choose_model()
            await asyncio.gather(
                *[
                    one(benchmark, settings, problem, sample)
                    for benchmark, settings in benchmarks
                    for problem in benchmark.problems
                    for sample in file.missing(benchmark.name, problem.id, settings.samples)
                ]
            )
        except openai.APIConnectionError as error:
            raise RecipeError(f"the server at {self._url} can't be reached: {error}") from error
        except openai.APIStatusError as error:
            raise RecipeError(f"the server at {self._url} refuses: {error.message}") from error
        finally:
            await self._interpreters.close()
            await self._verifier.close()
            await self._client.close()

    async def _choose_model(self) -> None:
        if self._name is not None:
            return
        names = [model.id async for model in self._client.models.list()]
        if len(names) != 1:
            raise RecipeError(
                f"the server at {self._url} serves {', '.join(names) or 'no model'}; choose one with --served-model"
            )
        self._name = names[0]

    async def _answer(self, benchmark: Benchmark, settings: Settings, problem: Problem, sample: int) -> Answer:
        dialogue = _Dialogue(self, benchmark, settings, problem, sample)
        return graded(await dialogue.to_the_end(), benchmark)

    async def complete(
        self, messages: list[ChatCompletionMessageParam], settings: Settings, max_tokens: int, seed: int
    ) -> tuple[str, str, int]:
        """One model turn: text, finish reason, tokens."""
        assert self._name is not None, "`play` chooses the model"
        done = await self._client.chat.completions.create(
            model=self._name,
            messages=messages,
            temperature=settings.temperature,
            max_tokens=max_tokens,
            seed=self._seed * 1_000_003 + seed,
        )
        choice = done.choices[0]
        used = done.usage.completion_tokens if done.usage else 0
        return choice.message.content or "", choice.finish_reason, used

    async def run(self, dialogue_id: str, text: str) -> list[ToolResult]:
        """The results of a turn's calls, in order; none where there are no calls."""
        requests = parse_calls(text, dialogue_id, Limits())
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

    def __init__(self, server: Server, benchmark: Benchmark, settings: Settings, problem: Problem, sample: int) -> None:
        self._server, self._benchmark, self._settings = server, benchmark, settings
        self._problem, self._sample = problem, sample
        self._parts: list[Part] = []
        self._tokens = self._turns = 0
        self._results: list[ToolResult] = []

    async def to_the_end(self) -> Answer:
        messages = self._opening()
        while True:
            left = self._settings.max_tokens - self._tokens
            said, why, used = await self._server.complete(messages, self._settings, left, self._sample)
            self._tokens += used
            self._turns += 1
            self._parts.append(Part(who="model", text=said))
            if why == "length":
                return self._ended("length", NO_ANSWER)
            name = f"{self._problem.id}/{self._sample}/{self._turns}"
            results = await self._server.run(name, said) if self._benchmark.style == "reasoning" else []
            if not results:
                verdict = await self._server.judge(extract_answer(said), self._problem.gold)
                return self._ended("answered", verdict)
            self._results += results
            if any(result.status == "sandbox_failure" for result in results):
                return self._ended("sandbox_failure", NO_ANSWER)
            if self._turns >= self._settings.max_turns:
                return self._ended("turns", NO_ANSWER)
            told = "\n".join(
                f"<tool_response>\n{result_text(result, TOOL_CHARACTERS)}\n</tool_response>" for result in results
            )
            self._parts.append(Part(who="tool", text=told))
            messages.append({"role": "assistant", "content": said})
            messages.append({"role": "user", "content": told})
            if self._tokens >= self._settings.max_tokens:
                return self._ended("length", NO_ANSWER)

    def _opening(self) -> list[ChatCompletionMessageParam]:
        if self._benchmark.style == "plain":
            return [{"role": "user", "content": self._problem.question}]
        return [
            {"role": "system", "content": TOOLS_PROMPT},
            {"role": "user", "content": QUESTION_PROMPT.format(question=self._problem.question)},
        ]

    def _ended(self, finish: str, verdict: Verdict) -> Answer:
        problem = self._problem
        return Answer.model_validate(
            {
                "benchmark": self._benchmark.name,
                "problem": problem.id,
                "family": problem.family,
                "question": problem.question,
                "gold": problem.gold,
                "sample": self._sample,
                "parts": tuple(self._parts),
                "extracted": verdict.extracted,
                "correct": verdict.correct,
                "reason": verdict.reason,
                "finish": finish,
                "response_tokens": self._tokens,
                "turns": self._turns,
                "calls": len(self._results),
                "tool_errors": sum(result.is_tool_error for result in self._results),
            }
        )
