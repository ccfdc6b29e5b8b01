"""Messages keep what is in them on their way, and what is no message is refused by name."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from actors.system.frames import pack_message
from actors.system.message import Done, Message, MessageError, Request, decode, encode


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Point(NamedTuple):
    x: int
    y: float


class Inner(BaseModel):
    numbers: tuple[int, ...]
    raw: bytes


class Everything(Message, tag="test.everything"):
    text: str
    number: float
    maybe: int | None
    colour: Colour
    point: Point
    inner: Inner
    table: dict[int, tuple[Inner, ...]]


class AskAhead(Request["Ahead"], tag="test.ask_ahead"):
    """Names its reply before the reply is defined."""

    text: str


class Ahead(Message, tag="test.ahead"):
    text: str


class AskBehind(Request[Ahead], tag="test.ask_behind"):
    text: str


inners = st.builds(Inner, numbers=st.lists(st.integers(-(2**63), 2**63 - 1)).map(tuple), raw=st.binary())
texts = st.text(st.characters(exclude_categories=["Cs"]))
everything = st.builds(
    Everything,
    text=texts,
    number=st.floats(allow_nan=False),
    maybe=st.none() | st.integers(0, 2**63),
    colour=st.sampled_from(Colour),
    point=st.builds(Point, st.integers(-5, 5), st.floats(allow_nan=False)),
    inner=inners,
    table=st.dictionaries(st.integers(-9, 9), st.lists(inners, max_size=2).map(tuple), max_size=3),
)


@given(everything)
def test_a_message_comes_back_as_it_was(message: Everything) -> None:
    back = decode(message.tag, encode(message))
    assert back == message
    assert type(back) is Everything
    assert isinstance(back.point, Point) and isinstance(back.colour, Colour)


@pytest.mark.parametrize("cls", [AskAhead, AskBehind])
def test_requests_name_their_reply_by_class_or_by_name(cls: type[Message]) -> None:
    message = cls(text="x")  # type: ignore[call-arg]
    assert decode(cls.tag, encode(message)) == message


def test_an_unknown_tag_is_refused_by_name() -> None:
    with pytest.raises(MessageError, match=r"no\.such\.tag"):
        decode("no.such.tag", encode(Done()))


@pytest.mark.parametrize("fields", [{}, {"text": 3}, {"text": "x", "more": 1}, ["x"], None])
def test_fields_that_do_not_fit_are_refused(fields: object) -> None:
    body = msgpack.packb(fields)
    assert body is not None
    with pytest.raises(MessageError, match=r"test\.ahead"):
        decode("test.ahead", body)


def test_a_tag_is_given_once() -> None:
    with pytest.raises(MessageError, match="taken by"):

        class Impostor(Message, tag="test.ahead"):
            pass

    assert decode("test.ahead", encode(Ahead(text="x"))) == Ahead(text="x")


def test_what_can_not_travel_is_refused_by_name() -> None:
    class Holder(Message, tag="test.holder"):
        value: object

    class Untagged(Message):
        pass

    for value in (object(), {1, 2}, 2**70, "\ud800"):
        with pytest.raises(MessageError, match=r"test\.holder"):
            pack_message(1, Holder(value=value))
    with pytest.raises(MessageError, match="no tag"):
        pack_message(1, Untagged())
    assert pack_message(1, Holder(value=7)) == msgpack.packb([1, "test.holder", {"value": 7}])


def test_messages_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Ahead(text="x").text = "y"  # type: ignore[misc]


def test_the_lane_is_a_property_of_the_class() -> None:
    class Urgent(Message, tag="test.urgent"):
        lane = "control"

    assert (Ahead.lane, Urgent.lane, Urgent().lane) == ("work", "control", "control")
    assert "lane" not in Urgent.model_fields
