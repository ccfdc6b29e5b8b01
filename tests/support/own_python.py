"""Installations of Python that a test may break: linked from the one that runs it, file by file."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path

NAME = f"python{sys.version_info.major}.{sys.version_info.minor}"


def own_installation(place: Path) -> Path:
    """An installation at `place`, without tests and packages. Its files are links: replace them, never write to one."""

    def link(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:  # another file system
            shutil.copy2(source, target)

    ignored = shutil.ignore_patterns("site-packages", "test", "share", "include")
    return Path(shutil.copytree(sys.base_prefix, place, symlinks=True, copy_function=link, ignore=ignored))


def environment_on(installation: Path, place: Path) -> Path:
    """A virtual environment at `place` with the packages of the one that runs this; returns its interpreter."""
    (place / "bin").mkdir(parents=True)
    (place / "lib" / NAME).mkdir(parents=True)
    (place / "lib" / NAME / "site-packages").symlink_to(sysconfig.get_path("purelib"))
    (place / "pyvenv.cfg").write_text(f"home = {installation / 'bin'}\n")
    python = place / "bin" / "python"
    python.symlink_to(installation / "bin" / NAME)
    return python


class Broken:
    """A file of the standard library that says, and does, something else while the context is open."""

    def __init__(self, installation: Path, file: str, text: str) -> None:
        self._file, self._text = installation / "lib" / NAME / file, text
        self._aside = self._file.with_suffix(".aside")

    def __enter__(self) -> None:
        self._file.rename(self._aside)
        self._file.write_text(self._text)

    def __exit__(self, *_: object) -> None:
        self._aside.replace(self._file)
