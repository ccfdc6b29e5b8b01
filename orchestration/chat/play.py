"""Plays a conversation: the engine samples the model's turns, the sandbox runs its code, a view shows both."""

from __future__ import annotations

import asyncio

from actors.engines.engine import Engine, SampleRequest
from actors.system.actor import seed_for
from env.interpreters import Interpreters
from env.tool_call import JUPYTER_TOOL, ToolCall, ToolResult
from orchestration.chat.figures import Figures
from orchestration.chat.settings import ChatSettings
from orchestration.chat.turn_view import TurnView
from policies import tokens
from policies.conversation import Conversation, Waiting
from policies.dialogue import Execute, Sample
from policies.trajectory import Finish


class ChatPlayer:
    """One conversation after the other, on one engine and one sandbox.

    `answer` may be cancelled at any time; `stop` then makes it the user's turn.

    Args:
        interpreters: None if the model has no tools.
        figures: saves what cells draw; None: nobody does.
    """

    def __init__(
        self,
        settings: ChatSettings,
        engine: Engine,
        interpreters: Interpreters | None,
        view: TurnView,
        figures: Figures | None = None,
    ) -> None:
        self._settings, self._engine, self._interpreters, self._view = settings, engine, interpreters, view
        self._figures = figures
        self._begun = 0
        self._requests = 0
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self.conversation = self._new()

    def _new(self) -> Conversation:
        self._begun += 1
        return Conversation(id=f"chat-{self._begun}", chat=self._settings.chat, limits=self._settings.limits)

    async def reset(self) -> None:
        """Begin a new conversation; the session of the last one is ended."""
        over, self.conversation = self.conversation, self._new()
        if self._interpreters is not None and over.id in self._interpreters.open_sessions():
            await (await self._interpreters.sessions()).end(over.id)
        if self._figures is not None:
            self._figures.begin_anew()

    async def answer(self, text: str) -> Finish:
        """Say `text` to the model and play on until it is the user's turn again.

        Bytes that are no text are said as `?`. Raises `MessageTooLong` (nothing has changed then), and `EngineFailed`.
        """
        self.conversation.say(text.encode("utf-8", "replace").decode())  # lone surrogates can't be encoded as tokens
        shown = len(self.conversation.calls)
        while True:
            action = self.conversation.next_action()
            records = self.conversation.calls[shown:]
            self._view.results([record.result for record in records if record.result.status == "invalid_call"])
            shown += len(records)
            match action:
                case Sample() as sample:
                    await self._sample(sample)
                case Execute(calls):
                    await self._execute(calls)
                case Waiting(finish):
                    assert finish is not None, "something has been said"
                    self._view.ended(finish)
                    return finish

    def stop(self) -> None:
        """After `answer` was cancelled: what was said until then stays, and it is the user's turn."""
        if self.conversation.waiting:
            return
        self._view.turn_ends()
        said = tokens.pack_ids(self._ids), tokens.pack_floats(self._logprobs)
        self.conversation.interrupted(*said)
        self._ids, self._logprobs = [], []
        self._view.ended("interrupted")

    async def _sample(self, sample: Sample) -> None:
        """Sample a turn, and show its tokens as they come. What is shown is what is kept if it is stopped."""
        self._requests += 1
        pieces: asyncio.Queue[tuple[list[int], list[float]] | None] = asyncio.Queue()
        name = f"{self.conversation.id}#{sample.turn}"
        request = SampleRequest(
            id=f"{name}#{self._requests}",
            ids=self.conversation.ids(),
            max_tokens=sample.max_tokens,
            temperature=self._settings.temperature,
            stop_ids=self._settings.chat.stop_ids,
            seed=seed_for(self._settings.seed, name) >> 1,
            on_tokens=lambda ids, logprobs: pieces.put_nowait((ids, logprobs)),
        )
        sampling = asyncio.ensure_future(self._engine.sample(request))
        sampling.add_done_callback(lambda _: pieces.put_nowait(None))
        try:
            while (piece := await pieces.get()) is not None:
                self._ids += piece[0]
                self._logprobs += piece[1]
                self._view.tokens(piece[0])
            result = await sampling
        finally:
            sampling.cancel()  # the engine gives the request up; nothing if it is done
        self._ids, self._logprobs = [], []
        self._view.turn_ends()
        self.conversation.sampled(tokens.pack_ids(result.ids), tokens.pack_floats(result.logprobs), result.version)

    async def _execute(self, calls: tuple[ToolCall, ...]) -> None:
        assert self._interpreters is not None, "without tools no call is runnable"
        results: list[ToolResult] = []
        for call in calls:
            with self._view.running():
                result = await self._interpreters.run(call)
            self._view.results([result])
            results.append(result)
            if call.tool == JUPYTER_TOOL and self._figures is not None:
                await self._save_figures(self._figures, call.session)
        self.conversation.executed(results)

    async def _save_figures(self, figures: Figures, session: str) -> None:
        """A figure that can't be saved is no reason to end the chat."""
        try:
            self._view.figures(await figures.save_new(session))
        except OSError as error:
            self._view.note(f"figures were not saved: {error}")
