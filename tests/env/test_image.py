"""What the sandbox's Python consists of, and what is said when it does not."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from env import image
from env.image import Image, ImageIncomplete


def _built(tmp_path: Path) -> Path:
    """A folder that looks built: the real packages' metadata and the stamp, without the packages."""
    folder = tmp_path / "built"
    folder.mkdir()
    for metadata in image.PROJECT.joinpath(".sandbox").glob("*.dist-info"):
        shutil.copytree(metadata, folder / metadata.name)
    (folder / "built-from").write_text(image.fingerprint())
    return folder


def test_requirements_are_pinned_and_name_what_programs_need():
    pinned = image.pinned_packages()
    assert {"numpy", "scipy", "sympy", "mpmath", "pandas", "networkx"} <= set(pinned)
    assert all(version[0].isdigit() for version in pinned.values())


def test_a_built_image_is_complete_and_is_not_built_again(tmp_path: Path):
    built = Image(libraries=_built(tmp_path))
    built.check()
    assert image.build(built) is False


def test_a_missing_folder_is_named_with_its_fix(tmp_path: Path):
    with pytest.raises(ImageIncomplete, match=r"nowhere; run `\S+ -P -m env.image --libraries \S+nowhere`"):
        Image(libraries=tmp_path / "nowhere").check()


def test_what_makes_the_libraries_is_set_up_in_a_checkout_and_the_module_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(image, "PROJECT", tmp_path)
    monkeypatch.setattr(image.sys, "prefix", str(tmp_path / "elsewhere" / ".venv"))
    assert Image().remedy == f"{sys.executable} -P -m env.image"
    (tmp_path / "Makefile").touch()
    assert Image().remedy == "make setup"
    requirements = tmp_path / "some of mine.txt"
    assert Image(requirements=requirements).remedy.endswith(f"env.image --requirements '{requirements}'")


def test_building_that_fails_ends_with_the_installers_words_and_without_a_traceback(tmp_path: Path):
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("numpy==not-a-version\n")
    command = [sys.executable, "-m", "env.image", "--libraries", tmp_path / "x", "--requirements", requirements]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "not-a-version" in done.stderr and "Traceback" not in done.stderr


def test_a_missing_package_is_named(tmp_path: Path):
    folder = _built(tmp_path)
    shutil.rmtree(next(folder.glob("sympy-*.dist-info")))
    with pytest.raises(ImageIncomplete, match=r"lack sympy==\d"):
        Image(libraries=folder).check()


def test_other_requirements_make_it_out_of_date(tmp_path: Path):
    folder = _built(tmp_path)
    (folder / "built-from").write_text("another fingerprint")
    with pytest.raises(ImageIncomplete, match="out of date"):
        Image(libraries=folder).check()


def test_a_missing_interpreter_is_named(tmp_path: Path):
    with pytest.raises(ImageIncomplete, match="interpreter is not readable"):
        Image(prefix=tmp_path, libraries=None).check()


def test_an_image_is_checked_against_the_requirements_that_it_was_built_from(tmp_path: Path):
    folder = _built(tmp_path)
    own = folder / "requirements.txt"
    own.write_text("six==1.17.0\n")
    (folder / "built-from").write_text(image.fingerprint(own))
    Image.built_in(folder).check()
    with pytest.raises(ImageIncomplete, match="out of date"):
        Image(libraries=folder).check()


def test_versions_name_the_interpreter_and_every_library(tmp_path: Path):
    versions = Image(libraries=_built(tmp_path)).versions()
    assert versions.items() >= image.pinned_packages().items()
    assert versions["python"].startswith("3.12.")


def test_a_requirement_without_a_version_is_named(tmp_path: Path):
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("numpy>=2\n")
    with pytest.raises(ImageIncomplete, match=r"'numpy>=2' has no version; write name==version"):
        image.pinned_packages(requirements)


def test_installers_words_are_passed_on(tmp_path: Path):
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("numpy==not-a-version\n")
    with pytest.raises(ImageIncomplete, match="not-a-version"):
        image.build(Image(libraries=tmp_path / "libraries", requirements=requirements))
    assert list(tmp_path.iterdir()) == [requirements]


def test_code_without_an_image_uses_the_one_beside_its_virtual_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    code, installed = tmp_path / "code", tmp_path / "installed"
    (installed / ".venv").mkdir(parents=True)
    monkeypatch.setattr(image, "PROJECT", code)
    monkeypatch.setattr(image.sys, "prefix", str(installed / ".venv"))
    assert Image().libraries == code / ".sandbox"  # neither is there: the error names the project's own
    (installed / ".sandbox").mkdir()
    assert Image().libraries == installed / ".sandbox"
    (code / ".sandbox").mkdir(parents=True)
    assert Image().libraries == code / ".sandbox"
