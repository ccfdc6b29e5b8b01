"""Figures that a chat's code has drawn: fetched from the session's scratch directory, saved where the user finds them.

Invariants:
- what comes from a session is data of whoever wrote its code: names are made plain, nothing outside the chat's folder
  is written to, nothing that is there is overwritten;
- fetching changes nothing in the session;
- each figure is saved once, and again if the code has changed its file.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from env.interpreters import Interpreters
from env.tool_call import JUPYTER_TOOL, Limits, ToolCall

ENDINGS = (".png", ".jpg", ".jpeg", ".gif", ".svg", ".pdf", ".webp")
MOST_BYTES = 16 << 20
"""Of all the files that are fetched at once."""
MOST_FILES = 50
LIMITS = Limits(wall_seconds=30.0, output_bytes=2 * MOST_BYTES)
_PLAIN_NAME = re.compile(r"[^A-Za-z0-9._-]+")

_FETCH = r"""
import base64, json, os
found = []
for folder, _, names in os.walk(os.path.expanduser("~")):
    for name in names:
        path = os.path.join(folder, name)
        if not name.lower().endswith(endings) or os.path.islink(path) or not os.path.isfile(path):
            continue
        about = os.stat(path)
        found.append((about.st_mtime_ns, path, about.st_size))
for mtime_ns, path, size in sorted(found)[:most_files]:
    stamp = f"{mtime_ns} {size}"
    if known.get(path) != stamp and size <= most_bytes:
        most_bytes -= size
        with open(path, "rb") as file:
            content = base64.b64encode(file.read()).decode()
        print(json.dumps({"path": path, "stamp": stamp, "content": content}))
"""
"""Runs in the session's process, in a namespace of its own."""


class _Fetched(BaseModel):
    """A file of a session."""

    model_config = ConfigDict(frozen=True, strict=True)

    path: str
    stamp: str
    content: str


class Figures:
    """The figures of a chat's conversations, each in the first free folder `chat-N`, made when there is one to save.

    Args:
        base: where those folders are.
    """

    def __init__(self, interpreters: Interpreters, base: Path) -> None:
        self._interpreters, self._base = interpreters, base
        self.saved: list[Path] = []
        self.begin_anew()

    def begin_anew(self) -> None:
        """Another conversation, with an empty session."""
        self._folder: Path | None = None
        self._known: dict[str, str] = {}
        """Path in the session -> what it was like when it was saved."""

    async def save_new(self, session: str) -> list[Path]:
        """Save what is new in a session; returns the files. Raises `OSError` if they can't be fetched or written."""
        settings = {"known": self._known, "endings": ENDINGS, "most_bytes": MOST_BYTES, "most_files": MOST_FILES}
        code = f"exec({_FETCH!r}, {settings!r});"
        call = ToolCall(id=f"{session}-figures", tool=JUPYTER_TOOL, session=session, code=code, limits=LIMITS)
        result = await (await self._interpreters.sessions()).look(call, LIMITS)
        if result is None:
            return []
        if result.status != "success":
            raise OSError(f"the session's files can't be read: {result.reason or result.stderr.strip()[-200:]}")
        lines = (each for line in result.stdout.splitlines() if (each := _read(line)) is not None)
        found = [self._save(*each) for each in itertools.islice(lines, MOST_FILES)]  # the session may say more
        self.saved += found
        return found

    def _save(self, fetched: _Fetched, content: bytes) -> Path:
        if self._folder is None:
            self._folder = self._free_folder()
        name = Path(_PLAIN_NAME.sub("_", Path(fetched.path).name).lstrip("."))
        for number in itertools.count(1):
            path = self._folder / (name if number == 1 else f"{name.stem}-{number}{name.suffix}")
            if not path.exists():
                path.write_bytes(content)
                self._known[fetched.path] = fetched.stamp
                return path
        raise AssertionError("there is always a free name")

    def _free_folder(self) -> Path:
        self._base.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            folder = self._base / f"chat-{number}"
            try:
                folder.mkdir()
                return folder
            except FileExistsError:
                continue
        raise AssertionError("there is always a free name")


def _read(line: str) -> tuple[_Fetched, bytes] | None:
    """A line of what was fetched; None for what else the session's process wrote."""
    try:
        data: Any = json.loads(line)
        fetched = _Fetched.model_validate(data)
        content = base64.b64decode(fetched.content, validate=True)
    except (ValueError, RecursionError):  # pydantic's and base64's errors are ValueErrors
        return None
    return (fetched, content) if fetched.path.lower().endswith(ENDINGS) else None
