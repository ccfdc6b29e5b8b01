"""How pydantic validates fields that are named tuples: an instance is taken as it is, anything else is validated.

Without this pydantic makes every named tuple anew, member by member, each time a message or record is made.
"""

from __future__ import annotations

from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema


def as_it_is(source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
    """For `__get_pydantic_core_schema__` of a named tuple whose members are immutable.

    What comes from the wire (a list) is validated as before; an instance was made by code that is type-checked.
    """
    return core_schema.union_schema([core_schema.is_instance_schema(source), handler(source)], mode="left_to_right")
