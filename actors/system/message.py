"""Messages: small frozen pydantic models with a stable tag, encoded as msgpack.

A message class is registered under its tag when it is defined, so that any process that has imported
`actors.messages` can decode what another has sent. A `Request[Reply]` names the type of its answer.

    class Ping(Request["Pong"], tag="ping"):
        text: str

    class Pong(Message, tag="pong"):
        text: str
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgpack
from pydantic import BaseModel, ConfigDict, ValidationError

_REGISTRY: dict[str, type[Message]] = {}


class MessageError(ValueError):
    """Bytes that are not a message this process knows, or a message that does not validate."""


class Message(BaseModel):
    """Base of everything actors say to one another."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tag: ClassVar[str] = ""
    lane: ClassVar[Literal["work", "control"]] = "work"
    """Control messages (release, pause, update) overtake work on a lane of their own."""

    def __init_subclass__(cls, *, tag: str = "", **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not tag:
            return  # an abstract base, such as a parametrised Request
        cls.tag = tag

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if not cls.__dict__.get("tag"):
            return
        known = _REGISTRY.get(cls.tag)
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise MessageError(
                f"message tag {cls.tag!r} of {cls.__qualname__} is taken by {known.__module__}.{known.__qualname__}; "
                "choose another"
            )
        _REGISTRY[cls.tag] = cls


class Request[Reply: Message](Message):
    """A message that is answered with `Reply`."""


class Done(Message, tag="done"):
    """The answer of handlers that have nothing to say but that they are through."""


class WorkDone(Message, tag="work.done"):
    """How much an actor has done (`Actor.work_done`)."""

    done: int


class DescribeWork(Request[WorkDone], tag="work.describe"):
    """Asked of those who keep others waiting; each actor answers it."""

    lane: ClassVar[Literal["work", "control"]] = "control"


def plain(value: Any) -> Any:
    """msgpack's hook for nested models: their fields, without a copy through `model_dump`."""
    if isinstance(value, BaseModel):
        return value.__dict__
    raise MessageError(
        f"a message holds {value!r} of type {type(value).__name__}; use models, tuples, dicts, text, bytes or numbers"
    )


def encode(message: Message) -> bytes:
    """A message's fields as msgpack; its tag travels beside it."""
    packed = msgpack.packb(message.__dict__, default=plain)
    assert packed is not None, "packb returns bytes"
    return packed


def decode(tag: str, body: bytes) -> Message:
    """The inverse of `encode`.

    Raises `MessageError` for an unknown tag or fields that do not validate.
    """
    return from_fields(tag, msgpack.unpackb(body, strict_map_key=False))


def from_fields(tag: str, fields: Any) -> Message:
    """The message of `tag` whose fields msgpack has already unpacked, validated.

    Raises `MessageError` for an unknown tag or fields that do not validate.
    """
    cls = _REGISTRY.get(tag)
    if cls is None:
        raise MessageError(f"unknown message tag {tag!r}; import the module that defines it before decoding")
    try:
        return cls.__pydantic_validator__.validate_python(fields)
    except ValidationError as error:
        raise MessageError(f"message {tag!r} does not validate: {error}") from error
