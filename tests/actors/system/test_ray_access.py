"""What workers are told of the driver."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from actors.system import ray_access

_protocol: Any = importlib.import_module("ray.core.generated.common_pb2")  # generated, without types


def _told(*folders: Path) -> list[str]:
    """The folders that workers look for modules in, of those that Ray would have them look in."""
    job = ray_access._OwnPackagesFirst()
    job._py_driver_sys_path.extend(map(str, folders))
    return list(_protocol.JobConfig.FromString(job._serialize()).py_driver_sys_path)


def _package(folder: Path, name: str) -> Path:
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").touch()
    return folder


def test_a_folder_in_which_greenrooms_packages_are_others_is_kept_from_workers(tmp_path: Path) -> None:
    packages = [_package(tmp_path / name, name) for name in ("actors", "env", "policies", "orchestration")]
    module = tmp_path / "module"
    module.mkdir()
    (module / "env.py").touch()
    assert _told(*packages, module) == []


def test_folders_that_hide_nothing_are_passed_on(tmp_path: Path) -> None:
    others = _package(tmp_path / "others", "mine")
    environment = tmp_path / "project"  # with a virtual environment called env, as many have
    (environment / "env" / "bin").mkdir(parents=True)
    greenroom = Path(ray_access.__file__).parents[2]
    assert _told(others, environment, greenroom) == [str(each) for each in (others, environment, greenroom)]
