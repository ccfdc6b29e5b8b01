"""What a jail can see of Python: the interpreter, its standard library, and the sandbox's own libraries.

Invariants:
- the interpreter is the base of the project's virtual environment, never the environment itself: generated
  code can't import the trainer;
- the libraries are pinned, installed apart (`.sandbox/` in the project's root), and compiled to bytecode, because
  a jail can't write bytecode and importing sympy without it takes four times as long;
- beside them lies our backend for matplotlib (`env.figure_files`);
- a stamp names what `.sandbox/` holds, and is written last: a half-built folder is never taken for a built one.

`python -m env.image` builds it and returns at once when there is nothing to do. (`python -P -m env.image` where the
working directory has an `env` of its own.)
"""

from __future__ import annotations

import argparse
import compileall
import hashlib
import importlib.metadata
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
REQUIREMENTS = Path(__file__).with_name("image-requirements.txt")
FIGURES = Path(__file__).with_name("figure_files.py")
"""A file of ours that lies beside the libraries: what matplotlib draws with."""
_STAMP = "built-from"
_REQUIREMENTS = "requirements.txt"
"""Copy of what an image was built from, in its folder."""


class ImageIncomplete(RuntimeError):
    """The sandbox image is missing or does not hold what it should; the text says what, and what mends it."""


@dataclass(frozen=True)
class Image:
    """Where the parts of the sandbox's Python lie on this machine."""

    prefix: Path = field(default_factory=lambda: Path(sys.base_prefix).resolve())
    """The interpreter's installation: holds bin/pythonX.Y and lib/pythonX.Y."""
    libraries: Path | None = field(default_factory=lambda: built_libraries())
    """Folder that `build` made; None for an interpreter with the standard library only."""
    requirements: Path = REQUIREMENTS
    """The pinned packages that `libraries` holds."""

    @classmethod
    def built_in(cls, libraries: Path) -> Image:
        """The image in a folder that `build` made, of whatever requirements it was built from."""
        own = libraries / _REQUIREMENTS
        return cls(libraries=libraries, requirements=own if own.is_file() else REQUIREMENTS)

    @property
    def python_name(self) -> str:
        """File name of the interpreter, such as `python3.12`."""
        return f"python{sys.version_info.major}.{sys.version_info.minor}"

    @property
    def executable(self) -> Path:
        return self.prefix / "bin" / self.python_name

    @property
    def standard_library(self) -> Path:
        return self.prefix / "lib" / self.python_name

    @property
    def shared_library(self) -> Path | None:
        """`libpythonX.Y.so`, if the interpreter is linked against one of its own."""
        name = sysconfig.get_config_var("INSTSONAME")
        path = self.prefix / "lib" / str(name)
        return path if name and path.is_file() else None

    def versions(self) -> dict[str, str]:
        """What programs find in it: `python` and every library -> version."""
        libraries = {} if self.libraries is None else installed_packages(self.libraries)
        return {"python": platform.python_version()} | dict(sorted(libraries.items()))

    @property
    def remedy(self) -> str:
        """The command that makes the libraries: a checkout has its set-up, an installed package this module alone."""
        project = PROJECT / ".sandbox"
        if (self.libraries, self.requirements) == (project, REQUIREMENTS) and (PROJECT / "Makefile").is_file():
            return "make setup"
        command = [sys.executable, "-P", "-m", "env.image"]
        if self.libraries not in (None, project):
            command += ["--libraries", str(self.libraries)]
        if self.requirements != REQUIREMENTS:
            command += ["--requirements", str(self.requirements)]
        return shlex.join(command)

    def check(self) -> None:
        """Raises `ImageIncomplete` if a part is missing or out of date."""
        for path, what in ((self.executable, "interpreter"), (self.standard_library / "os.py", "standard library")):
            if not os.access(path, os.R_OK):
                raise ImageIncomplete(
                    f"the sandbox's {what} is not readable at {path}; use a virtual environment "
                    "whose base Python is a complete installation"
                )
        if self.libraries is None:
            return
        stamp = self.libraries / _STAMP
        if not stamp.is_file():
            raise ImageIncomplete(f"the sandbox's libraries are not built in {self.libraries}; run `{self.remedy}`")
        if stamp.read_text() != fingerprint(self.requirements):
            raise ImageIncomplete(f"the sandbox's libraries in {self.libraries} are out of date; run `{self.remedy}`")
        missing = missing_packages(self.libraries, self.requirements)
        if missing:
            raise ImageIncomplete(
                f"the sandbox's libraries in {self.libraries} lack {', '.join(missing)}; remove that folder "
                f"and run `{self.remedy}`"
            )


def built_libraries() -> Path:
    """The project's own image; or, where the code was brought here without one (as a Ray job's working directory), the
    one beside the virtual environment that runs it: set-up makes both in one place."""
    own, beside = PROJECT / ".sandbox", Path(sys.prefix).parent / ".sandbox"
    return beside if beside.is_dir() and not own.is_dir() else own


def pinned_packages(requirements: Path = REQUIREMENTS) -> dict[str, str]:
    """Name -> version of everything in a file of pinned requirements.

    Raises `ImageIncomplete` for a line that pins nothing.
    """
    lines = (line.split("#")[0].strip() for line in requirements.read_text().splitlines())
    parts = [line.partition("==") for line in lines if line]
    pinned = {name: version for name, _, version in parts}
    for name, version in pinned.items():
        if not version:
            raise ImageIncomplete(f"{requirements}: {name!r} has no version; write name==version")
    return pinned


def fingerprint(requirements: Path = REQUIREMENTS) -> str:
    """Names the content of an image: its pinned packages, our file, and the interpreter they were compiled for."""
    text = f"{sorted(pinned_packages(requirements).items())} {sys.implementation.cache_tag} {sysconfig.get_platform()}"
    return hashlib.sha256(text.encode() + FIGURES.read_bytes()).hexdigest()


def installed_packages(libraries: Path) -> dict[str, str]:
    """Name -> version of everything installed in `libraries`."""
    return {d.name.lower(): d.version for d in importlib.metadata.distributions(path=[str(libraries)])}


def missing_packages(libraries: Path, requirements: Path = REQUIREMENTS) -> list[str]:
    """Pinned packages that are not installed in `libraries`, as `name==version`."""
    found, pinned = installed_packages(libraries), pinned_packages(requirements)
    return [f"{name}=={version}" for name, version in pinned.items() if found.get(name) != version]


def build(image: Image) -> bool:
    """Install and compile the image's libraries; returns whether there was anything to do.

    Raises `ImageIncomplete` if the installer fails; its output is in the text.
    """
    if image.libraries is None:
        return False
    try:
        image.check()
        return False
    except ImageIncomplete:
        pass
    final = image.libraries
    building = final.with_name(f"{final.name}.building")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    try:
        _install(building, image.requirements)
    except ImageIncomplete:
        shutil.rmtree(building)
        raise
    shutil.copyfile(FIGURES, building / FIGURES.name)
    compileall.compile_dir(building, quiet=2, workers=0)
    _compile_standard_library(image)
    (building / _REQUIREMENTS).write_text(image.requirements.read_text())
    (building / _STAMP).write_text(fingerprint(image.requirements))
    shutil.rmtree(final, ignore_errors=True)
    building.rename(final)
    image.check()
    return True


def _install(target: Path, requirements: Path) -> None:
    """With uv if it is there (much faster), else with pip; the machine's own index settings apply."""
    arguments = ["install", "--no-deps", "--target", str(target), "-r", str(requirements), "--quiet"]
    uv = _uv()
    if uv is not None:
        command = [uv, "pip", *arguments, "--python", sys.executable]
    else:
        command = [sys.executable, "-m", "pip", *arguments, "--only-binary", ":all:"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise ImageIncomplete(f"`{' '.join(command)}` failed:\n{done.stdout}{done.stderr}")


def _uv() -> str | None:
    """A uv that runs: the one that set-up made, or this machine's (a version manager's shim may run nothing)."""
    for candidate in (str(PROJECT / ".setup" / "uv" / "bin" / "uv"), shutil.which("uv")):
        if candidate and Path(candidate).exists():
            if subprocess.run([candidate, "--version"], capture_output=True).returncode == 0:
                return candidate
    return None


def _compile_standard_library(image: Image) -> None:
    """Distributions that ship no bytecode (uv's, for one) get it once, if we may write there; else calls are slower."""
    cache = image.standard_library / "encodings" / "__pycache__"
    if any(cache.glob(f"utf_8.{sys.implementation.cache_tag}.pyc")) or not os.access(image.standard_library, os.W_OK):
        return
    compileall.compile_dir(image.standard_library, quiet=2, workers=0)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m env.image", description="Build the sandbox's libraries.")
    parser.add_argument("--libraries", type=Path, default=PROJECT / ".sandbox", help="where they go")
    parser.add_argument(
        "--requirements", type=Path, default=REQUIREMENTS, help="what they are: name==version, a line each"
    )
    arguments = parser.parse_args()
    image = Image(libraries=arguments.libraries.resolve(), requirements=arguments.requirements)
    try:
        built = build(image)
    except (ImageIncomplete, OSError) as error:  # the installer's own words; a folder that can't be written to
        raise SystemExit(f"error: the sandbox's libraries could not be built: {error}") from None
    print(f"sandbox libraries: {'built' if built else 'up to date'} in {image.libraries}")


if __name__ == "__main__":
    main()
