"""A judge model that compares answers with a baseline's, behind an OpenAI-compatible URL; in our own words.

Each answer plays two games against the baseline's, once as answer A and once as answer B, since judges prefer a place
(arXiv 2406.11939). A verdict says who is better, and whether clearly; a clear one counts three times, as there.

Invariants:
- a judgement is written and flushed when it is there, so judging goes on where it was interrupted;
- what the judge can't decide in `ATTEMPTS` tries counts as a tie, and is told of (`undecided`);
- an answer that the judge's server fails to judge has failed, and is judged again the next time.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from actors.system.together import all_done
from orchestration.evaluation.answers import Answer, AnswerKey, whole_lines
from orchestration.evaluation.completions import AT_ONCE, Completions, RequestFailed
from policies.trajectory import Record

JUDGEMENTS_FILE = "judgements.jsonl"
ATTEMPTS = 2
MOST_TOKENS = 4096
CLEARLY = 3.0
"""Weight of a clear verdict."""

PROMPT = """You compare two answers to the same request. Judge what matters to the person who asked: is it correct, \
does it do what was asked, is it as short as it can be and as long as it must be. Neither the order of the answers nor \
their style counts, and a longer answer is not a better one for being longer.

First solve or outline the request yourself. Then name the mistakes of each answer. End with exactly one of these lines:
[[A>>B]] if A is clearly better
[[A>B]] if A is slightly better
[[A=B]] if they are about as good as one another
[[B>A]] if B is slightly better
[[B>>A]] if B is clearly better

<request>
{question}
</request>

<answer_a>
{first}
</answer_a>

<answer_b>
{second}
</answer_b>"""

Verdict = Literal["A>>B", "A>B", "A=B", "B>A", "B>>A", "undecided"]
_VERDICT = re.compile(r"\[\[(A>>B|A>B|A=B|B>A|B>>A)\]\]")
_SHARES: dict[Verdict, tuple[float, float]] = {
    "A>>B": (1.0, CLEARLY),
    "A>B": (1.0, 1.0),
    "A=B": (0.5, 1.0),
    "B>A": (0.0, 1.0),
    "B>>A": (0.0, CLEARLY),
    "undecided": (0.5, 1.0),
}
"""Verdict -> (what A gets, the game's weight)."""


class Judgement(Record):
    """Both games of one answer."""

    benchmark: str
    problem: str
    sample: int
    as_a: Verdict
    """Of the game in which the answer was A."""
    as_b: Verdict
    texts: tuple[str, str]
    """What the judge wrote."""

    @property
    def key(self) -> AnswerKey:
        return (self.benchmark, self.problem, self.sample)

    @property
    def score(self) -> float:
        """The answer's share of the points of its two games, between 0 and 1."""
        (share_a, weight_a), (share_b, weight_b) = _SHARES[self.as_a], _SHARES[self.as_b]
        return (share_a * weight_a + (1 - share_b) * weight_b) / (weight_a + weight_b)

    @property
    def undecided(self) -> float:
        """The share of its games that the judge did not decide."""
        return (self.as_a, self.as_b).count("undecided") / 2


def verdict_in(text: str) -> Verdict:
    """The last verdict in what a judge wrote."""
    found = _VERDICT.findall(text)
    return found[-1] if found else "undecided"


class JudgementFile:
    """The judgements of an evaluation, on disk and in memory."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / JUDGEMENTS_FILE
        stored = [Judgement.model_validate_json(line) for line in whole_lines(self._path)]
        self.judgements = {judgement.key: judgement for judgement in stored}

    def add(self, judgement: Judgement) -> None:
        """Keep a judgement."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(judgement.model_dump_json() + "\n")
        self.judgements[judgement.key] = judgement

    def missing(self, answers: Iterable[Answer]) -> list[Answer]:
        """Answers that nobody has judged. Those that could not be played are lost without a judge."""
        return [answer for answer in answers if answer.finish != "failed" and answer.key not in self.judgements]

    def judged(self, answer: Answer, failed: str | None = None) -> Answer:
        """The answer with its score; it is right if it gets more than half of the points.

        Args:
            failed: why it could not be judged; then the answer has failed.
        """
        if failed is not None:
            reason = f"could not be judged: {failed}"
            return answer.model_copy(update={"finish": "failed", "correct": False, "reason": reason})
        judgement = self.judgements.get(answer.key)
        if judgement is None:
            return answer
        reason = f"judged {judgement.as_a} as A, {judgement.as_b} as B"
        return answer.model_copy(
            update={
                "score": judgement.score,
                "correct": judgement.score > 0.5,
                "reason": reason,
                "figures": answer.figures | {"undecided": judgement.undecided},
            }
        )


class Judge:
    """A judge behind a URL.

    Args:
        url: up to and including `/v1`.
        name: the judge's name there; None takes the only model that the server lists.
    """

    def __init__(self, url: str, name: str | None, key: str) -> None:
        self._completions = Completions(url, name, key, "--judge-model")

    async def compare(
        self, answers: Sequence[Answer], baseline: Mapping[str, str], keep: Callable[[Judgement], None]
    ) -> dict[AnswerKey, str]:
        """Judge answers; `keep` takes each judgement when it is there. Returns why others could not be judged.

        Args:
            baseline: by problem id.

        Raises `RecipeError` if the server is of no use, or serves none or several models and no name was given.
        """
        places = asyncio.Semaphore(AT_ONCE)
        failed: dict[AnswerKey, str] = {}

        async def one(answer: Answer) -> None:
            said, other = "".join(part.text for part in answer.parts), baseline[answer.problem]
            try:
                async with places:
                    as_a, text_a = await self._game(answer.question, said, other)
                    as_b, text_b = await self._game(answer.question, other, said)
            except RequestFailed as error:
                failed[answer.key] = str(error)
                return
            keep(
                Judgement(
                    benchmark=answer.benchmark,
                    problem=answer.problem,
                    sample=answer.sample,
                    as_a=as_a,
                    as_b=as_b,
                    texts=(text_a, text_b),
                )
            )

        try:
            await self._completions.choose_model()
            await all_done(one(answer) for answer in answers)
        finally:
            await self._completions.close()
        return failed

    async def _game(self, question: str, first: str, second: str) -> tuple[Verdict, str]:
        asked = PROMPT.format(question=question, first=first, second=second)
        text = ""
        for attempt in range(ATTEMPTS):
            said = await self._completions.complete([{"role": "user", "content": asked}], 0.0, MOST_TOKENS, attempt)
            text = said.text
            verdict = verdict_in(text)
            if verdict != "undecided":
                return verdict, text
        return "undecided", text
