"""Chat as tokens: the prompt, and what is appended after a model turn. Histories only ever grow.

A model's own chat template does the rendering. What follows a model turn is found by rendering a small
conversation with a marker in the assistant's place and taking what comes after the marker's end-of-turn
token: so the history that the model sampled is never decoded and encoded again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from env.tool_call import PYTHON_TOOL, ToolName
from policies.tool_calls import schemas_of

type Render = Callable[[list[dict[str, Any]], list[dict[str, Any]] | None, bool], str]
"""(messages, tools, add_generation_prompt) -> text."""

SYSTEM_PROMPT = (
    "You solve problems step by step. Think inside <reason> </reason> first; when you are sure, write the result "
    "inside <answer> </answer>.\nExample: <reason> how the result comes about </reason><answer> the result </answer>"
)
"""In our own words, with the parts that rStar2-Agent's prompt has; tools are listed by the chat template."""

QUESTION_PROMPT = (
    "Solve the problem below. Put the final answer into <answer> </answer> tags, as \\boxed{{...}}: it is read from "
    "there automatically.\n\n{question}"
)

_MARKER = "\u2063greenroom-marker\u2063"
_RESULT = "greenroom-result"
"""In a tool's place; without a character that a template that makes JSON of results would escape."""


class Piece(NamedTuple):
    """A run of tokens of a dialogue: the assistant's words with the end of its turn, or what stands between them."""

    ids: list[int]
    learned: bool


class TemplateUnusable(ValueError):
    """A chat template that can't be used to continue a conversation."""


class ChatFormat:
    """Turns problems and tool results into token ids for one tokenizer.

    Args:
        encode: text -> ids, without adding special tokens.
        decode: ids -> text, special tokens included.
        render: the chat template.
        end_of_turn: the token that a model ends its turn with.
        instructions: whether the system and question prompts are used; without, the bare question is the prompt.
        opening: text put after the generation prompt, such as `<reason>`.

    Raises `TemplateUnusable` if the template drops assistant messages. Whether it drops tools' results matters only
    where there are some (`check_results`).
    """

    def __init__(
        self,
        *,
        encode: Callable[[str], list[int]],
        decode: Callable[[Sequence[int]], str],
        render: Render,
        end_of_turn: str,
        instructions: bool,
        opening: str = "<reason>",
    ) -> None:
        self._encode, self.decode, self.render = encode, decode, render
        self._instructions, self._opening = instructions, opening
        self.end_of_turn = end_of_turn
        ids = encode(end_of_turn)
        if len(ids) != 1:
            raise TemplateUnusable(
                f"end of turn {end_of_turn!r} must be one token, but the tokenizer makes {len(ids)} of it"
            )
        self.stop_ids: tuple[int, ...] = (ids[0],)
        self.tool_turn(["probe"])

    def prompt(self, question: str, tools: Sequence[ToolName] = (PYTHON_TOOL,)) -> list[int]:
        """Ids of the dialogue up to where the model begins; `tools` are those that it is told of."""
        return self._encode(
            self.render(self.opening_messages(question), schemas_of(tools) or None, True) + self._opening
        )

    def model_turn(self, text: str) -> list[int]:
        """Ids of a model turn that says `text` and ends (demonstrations need it; rollouts sample theirs)."""
        return [*self._encode(text), *self.stop_ids[:1]]

    def tool_turn(self, results: Sequence[str]) -> list[int]:
        """Ids to append after a model turn that made calls: the results, and the start of the next model turn."""
        return self._encode(self._following([{"role": "tool", "content": text} for text in results]))

    def check_results(self) -> None:
        """Raise `TemplateUnusable` if what tools return never gets to the model."""
        if _RESULT not in self._following([{"role": "tool", "content": _RESULT}]):
            raise TemplateUnusable(
                "the chat template drops a tool's result, or does not end the assistant message before it with "
                f"{self.end_of_turn!r}; use one that renders both, or name the right end of turn"
            )

    def user_turn(self, text: str, results: Sequence[str] = ()) -> list[int]:
        """Ids to append after a model turn that a user answers, and the start of the next model turn.

        Args:
            results: of calls of that turn that the model has not read yet.

        Raises `TemplateUnusable` if the template drops further user messages.
        """
        read: list[dict[str, Any]] = [{"role": "tool", "content": result} for result in results]
        rendered = self._following([*read, {"role": "user", "content": text}])
        if text.strip() not in rendered:
            raise TemplateUnusable(
                "the chat template drops or changes what a user says after the first answer; use one that renders it"
            )
        return self._encode(rendered)

    def _following(self, messages: list[dict[str, Any]]) -> str:
        """What stands between the end of a model turn and the next one, which has begun."""
        before = [*self.opening_messages("?"), {"role": "assistant", "content": _MARKER}]
        text = self.render([*before, *messages], schemas_of((PYTHON_TOOL,)), True)
        return self._after_marker(text) + self._opening

    def conversation(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> list[Piece]:
        """A whole dialogue up to its last assistant message, cut as rollouts cut theirs.

        What the template makes of the messages is found by rendering them with a marker in each assistant's place.

        Raises `TemplateUnusable` if it drops or reorders assistant messages.
        """
        marked = [
            message | {"content": f"{_MARKER}{index}{_MARKER}"} if message["role"] == "assistant" else message
            for index, message in enumerate(messages)
        ]
        rest, pieces = self.render(marked, tools, False), []
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before, found, rest = rest.partition(f"{_MARKER}{index}{_MARKER}")
            if not (found and rest.startswith(self.end_of_turn)):
                raise TemplateUnusable(
                    f"the chat template does not render message {index}, the assistant's, in its place and end it "
                    f"with {self.end_of_turn!r}"
                )
            said = self.without_opening(message["content"])
            opening = self._opening if said != message["content"] else ""
            pieces += [Piece(self._encode(before + opening), False), Piece(self.model_turn(said), True)]
            rest = rest.removeprefix(self.end_of_turn)
        return pieces

    def without_opening(self, content: str) -> str:
        """What the model itself says of a turn: the opening is given to it."""
        return content.removeprefix(self._opening)

    def opening_messages(self, question: str) -> list[dict[str, Any]]:
        """The messages that put a problem to the model."""
        if not self._instructions:
            return [{"role": "user", "content": question}]
        return [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": QUESTION_PROMPT.format(question=question)},
        ]

    def _after_marker(self, text: str) -> str:
        _, found, rest = text.rpartition(_MARKER)
        _, ended, rest = rest.partition(self.end_of_turn)
        if not (found and ended):
            raise TemplateUnusable(
                f"the chat template does not end an assistant message with {self.end_of_turn!r}; "
                "use a template that does, or name the right end of turn"
            )
        return rest
