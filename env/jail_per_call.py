"""One jail and one fresh interpreter for each call: slow, simple, and what the zygote is compared with."""

from __future__ import annotations

import os
from collections import OrderedDict
from contextlib import ExitStack

from env import cgroup_hierarchy, cgroups
from env.image import Image
from env.isolation import NO_CGROUP, Running, say_once
from env.jail import jail_config
from env.jailed_process import JailedProcess
from env.launch import Lane, Nsjail
from env.staging import Staging
from env.streams import sealed
from env.tool_call import Limits, ToolCall, ToolResult
from env.verdict import verdict

_CONFIGS_KEPT = 16


class JailPerCall:
    """A fresh nsjail and a fresh interpreter for each call. No state but the lanes outlives a call."""

    def __init__(self, image: Image, workers: int, run_id: str) -> None:
        """Raises `OSError` if the root can't be staged or cgroups can't be made."""
        self._image = image
        self._configs: OrderedDict[tuple[int, int, int], int] = OrderedDict()
        with ExitStack() as undo:
            self._staging = Staging(image)
            undo.callback(self._staging.close)
            self._nsjail = Nsjail()
            undo.callback(self._nsjail.close)
            hierarchy = cgroup_hierarchy.find_hierarchy()
            self._has_cgroup = hierarchy is not None
            self.weaknesses: tuple[str, ...] = () if self._has_cgroup else (NO_CGROUP + cgroup_hierarchy.obstacle(),)
            say_once(self.weaknesses)
            if hierarchy is not None:
                cgroups.sweep(hierarchy)
            self._lanes: list[Lane] = []
            for number in range(workers):
                cgroup = cgroups.Slot(hierarchy, run_id, f"{id(self):x}-{number}") if hierarchy else None
                self._lanes.append(Lane(self._staging, cgroup, f"greenroom-lane-{number}"))
                undo.callback(self._lanes[-1].close)
            self._undo = undo.pop_all()

    async def run(self, call: ToolCall, limits: Limits, worker: int, running: Running) -> ToolResult:
        code = call.code.encode("utf-8", "surrogatepass")
        stdin = call.input.encode("utf-8", "surrogatepass")
        process = JailedProcess(self._nsjail.path, self._config(limits), code, stdin, limits, self._lanes[worker])
        running.ends_by(process.abort)
        return verdict(call, limits, await process.run())

    def _config(self, limits: Limits) -> int:
        """A descriptor of the configuration for these limits; a few are kept, because most calls share theirs."""
        key = (limits.scratch_bytes, limits.memory_bytes, limits.processes)
        if key not in self._configs:
            text = jail_config(self._image, limits, staged_root=self._staging.staged_root, cgroup=self._has_cgroup)
            self._configs[key] = sealed("config", text.encode())
            if len(self._configs) > _CONFIGS_KEPT + len(self._lanes):  # those in use are among the newest
                os.close(self._configs.popitem(last=False)[1])
        self._configs.move_to_end(key)
        return self._configs[key]

    async def end_all(self) -> None:
        """Nothing outlives its call."""

    def close(self) -> None:
        self._undo.close()
        for descriptor in self._configs.values():
            os.close(descriptor)
        self._configs.clear()
