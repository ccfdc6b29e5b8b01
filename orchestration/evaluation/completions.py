"""Chat completions of one model behind an OpenAI-compatible URL, whose server may misbehave.

Invariants:
- what a server says is read by models of our own: the client library takes anything for a completion, be it a page of
  HTML or an answer without choices;
- a request that fails, after `RETRIES` further tries where those make sense, costs its own answer (`RequestFailed`) and
  no other. What every request would meet ends the command (`RecipeError`): nobody is there, no key, no such model, or
  `AT_ONCE` failures with no completion between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import openai
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel, Field, ValidationError

from orchestration.recipe import RecipeError

AT_ONCE = 32
"""Requests."""
RETRIES = 4
"""Of what may pass: lost connections, timeouts, 408, 409, 429, 5xx. Waits grow, or are those that the server names."""
TIMEOUT_S = 3600.0
"""How long a server may be silent: an answer comes only when it is whole."""
_SHOWN = 200
"""Characters of what is no completion."""


class RequestFailed(RuntimeError):
    """The server did not do what it was asked; the text says how."""


class Completion(BaseModel):
    """One model turn."""

    text: str
    finish: str | None
    tokens: int | None
    """That the model wrote; None if the server does not say."""


class _Message(BaseModel):
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Usage(BaseModel):
    completion_tokens: Annotated[int, Field(ge=0)] | None = None


class _Completed(BaseModel):
    choices: Annotated[list[_Choice], Field(min_length=1)]
    usage: _Usage | None = None


class _Model(BaseModel):
    id: str


class _Models(BaseModel):
    data: list[_Model]


class Completions:
    """The model behind a URL.

    Args:
        url: up to and including `/v1`.
        name: the model's name there; None takes the only one that the server lists.
        option: the option that names it, for messages.
    """

    def __init__(self, url: str, name: str | None, key: str, option: str) -> None:
        self._client = AsyncOpenAI(base_url=url, api_key=key, max_retries=RETRIES, timeout=TIMEOUT_S)
        self._url, self._name, self._option = url, name, option
        self._reached, self._failed_in_a_row = False, 0

    async def choose_model(self) -> None:
        """Find the model's name, if none was given. Raises `RecipeError` unless the server lists exactly one."""
        if self._name is not None:
            return
        try:
            listed = (await self._client.models.with_raw_response.list()).content
            names = [model.id for model in _Models.model_validate_json(listed).data]
        except openai.APIConnectionError as error:
            raise RecipeError(f"the server at {self._url} can't be reached: {_told(error)}") from error
        except (openai.APIStatusError, ValidationError) as error:
            why = f"refuses: {error}" if isinstance(error, openai.APIStatusError) else "answers with something else"
            raise RecipeError(
                f"the server at {self._url} was asked which models it has, and {why}; if the URL is right (it mostly "
                f"ends in /v1), name one with {self._option}"
            ) from error
        if len(names) != 1:
            raise RecipeError(
                f"the server at {self._url} serves {', '.join(names) or 'no model'}; choose one with {self._option}"
            )
        self._reached, self._name = True, names[0]

    async def complete(
        self, messages: Sequence[ChatCompletionMessageParam], temperature: float, max_tokens: int, seed: int
    ) -> Completion:
        """One model turn. Raises `RequestFailed`, or `RecipeError` for what other requests would meet, too."""
        assert self._name is not None, "`choose_model` comes first"
        try:
            answer = await self._client.chat.completions.with_raw_response.create(
                model=self._name, messages=messages, temperature=temperature, max_tokens=max_tokens, seed=seed
            )
            completion = _read(answer.content)
        except (openai.AuthenticationError, openai.PermissionDeniedError, openai.NotFoundError) as error:
            raise RecipeError(f"the server at {self._url} refuses: {error}") from error
        except openai.APIConnectionError as error:
            if not self._reached:
                raise RecipeError(f"the server at {self._url} can't be reached: {_told(error)}") from error
            raise self._failure(f"the server can't be reached: {_told(error)}") from error
        except openai.APIStatusError as error:
            self._reached = True
            raise self._failure(f"the server refuses: {error}") from error
        except RequestFailed as error:
            raise self._failure(str(error)) from error
        self._reached, self._failed_in_a_row = True, 0
        return completion

    async def close(self) -> None:
        """Give up the connections."""
        await self._client.close()

    def _failure(self, reason: str) -> RequestFailed:
        """Raises `RecipeError` instead if it is one too many."""
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= AT_ONCE:
            raise RecipeError(f"{AT_ONCE} requests in a row failed at {self._url}; the last one: {reason}")
        return RequestFailed(reason)


def _read(answer: bytes) -> Completion:
    """Raises `RequestFailed` for what is no completion, and for one that says less than the model did."""
    try:
        completed = _Completed.model_validate_json(answer)
    except ValidationError as error:
        first, shown = error.errors()[0], answer[:_SHOWN].decode(errors="replace")
        where = ".".join(map(str, first["loc"])) or "whole"
        raise RequestFailed(
            f"the server's answer is no chat completion ({where}: {first['msg']}): {shown!r}"
        ) from error
    message, finish = completed.choices[0].message, completed.choices[0].finish_reason
    if finish == "content_filter":
        raise RequestFailed("the server withheld what the model wrote (content_filter)")
    if message.tool_calls:
        raise RequestFailed("the server took calls out of the text (tool_calls); run it without a parser of calls")
    tokens = completed.usage.completion_tokens if completed.usage is not None else None
    return Completion(text=message.content or message.refusal or "", finish=finish, tokens=tokens)


def _told(error: openai.APIConnectionError) -> str:
    """The library's own words are always the same; what happened is the cause's."""
    return f"{error} {error.__cause__ or ''}".strip()
