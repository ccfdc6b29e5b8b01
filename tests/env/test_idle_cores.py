"""Idle cores are read from the kernel's own counters."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from env.idle_cores import IdleCores


def test_niced_idle_and_disk_time_count_and_the_rest_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    stat = tmp_path / "stat"
    stat.write_text("cpu  1000 50 300 7000 40 1 2 3 0 0\ncpu0 1 2 3 4 5\n")
    cores = IdleCores(stat)
    ticks = os.sysconf("SC_CLK_TCK")
    stat.write_text(f"cpu  9000 {50 + ticks} 900 {7000 + 2 * ticks} {40 + ticks} 5 6 7 0 0\n")
    now[0] += 2.0
    assert cores.since_last_look() == pytest.approx(2.0)  # four core-seconds in two seconds
    now[0] += 1.0
    assert cores.since_last_look() == 0.0  # nothing since


def test_this_machine_never_has_more_idle_cores_than_cores():
    cores = IdleCores()
    time.sleep(0.1)
    assert 0.0 <= cores.since_last_look() <= 1.5 * (os.cpu_count() or 1)  # ticks are counted in hundredths of a second
