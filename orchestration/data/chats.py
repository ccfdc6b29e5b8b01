"""Chats for SFT: rows read, converted, checked; and how one looks to the learner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from orchestration.data.rows import DataError, check_columns, mapping, read_rows
from orchestration.run_folder import write_whole
from policies.chat_data import ChatSample, Shown, pieces_of
from policies.chat_format import ChatFormat
from policies.chat_sets import CHAT_SETS
from policies.data_options import ChatDataOptions


@dataclass(slots=True)
class Chats:
    """What came of one or several sets."""

    samples: list[ChatSample] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


def load_chats(sets: tuple[ChatDataOptions, ...]) -> Chats:
    """The chats of all sets, one set after another. Raises `DataError`."""
    chats = Chats()
    for options in sets:
        before = len(chats.samples)
        chats.samples += islice(_converted(options, chats.left_out), options.limit)
        if len(chats.samples) == before:
            raise DataError(f"{options.path or options.name}: no chat is left; left out: {dict(chats.left_out)}")
    return chats


def _converted(options: ChatDataOptions, left_out: Counter[str]) -> Iterator[ChatSample]:
    chosen = CHAT_SETS[options.name]
    source = options.path or chosen.hub
    if not source:
        raise DataError(f"chats of the form {options.name!r} have no place of their own; give the path of a file")
    for located in read_rows(source, split=options.split):
        check_columns(located, chosen.columns)
        with mapping(located):
            sample = chosen.convert(located.row)
        if sample is None:
            left_out[f"left out by the rule of {options.name}"] += 1
        else:
            yield sample


def write_chats(path: Path, samples: list[ChatSample]) -> None:
    """Chats in our own form, which actors read (`actors.prepared`)."""
    write_whole(path, "".join(sample.model_dump_json() + "\n" for sample in samples))


def shown(sample: ChatSample, chat: ChatFormat) -> list[Shown]:
    """A sample as the learner gets it, decoded from its tokens: what is learned, and what is not.

    Raises `policies.chat_format.TemplateUnusable` if chat template and mask do not agree.
    """
    return [Shown(chat.decode(piece.ids), piece.learned) for piece in pieces_of(sample, chat)]


def marked(pieces: list[Shown]) -> str:
    """The pieces as plain text: what is learned stands between ⟦ and ⟧."""
    return "".join(f"⟦{piece.text}⟧" if piece.learned else piece.text for piece in pieces)
