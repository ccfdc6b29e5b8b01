"""The benchmark counts what it says it counts; how fast it is, is not a test's business."""

from __future__ import annotations

import pytest

from actors.system.local_ray import LocalRay
from orchestration.bench.mailbox import bench_mailbox


@pytest.mark.slow
async def test_the_figures_of_the_mailbox_benchmark_agree_with_each_other(local_ray: LocalRay) -> None:
    figures = await bench_mailbox(seconds=0.4, in_flight=200, rounds=2)
    assert figures.ratio == pytest.approx(figures.mailbox_per_s / figures.plain_per_s)
    assert figures.mailbox_replies > 0 and figures.plain_replies > 0
    assert figures.mailbox_per_s <= figures.mailbox_replies / 0.4
    assert figures.plain_per_s <= figures.plain_replies / 0.4
    assert (figures.in_flight, figures.body_bytes) == (200, 500)
