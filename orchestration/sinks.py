"""Sinks beyond `metrics.jsonl` and TensorBoard: W&B, Prometheus, and a report that is renewed while the run goes on.

Invariants, beside those of `MetricsSink`:
- a sink that can't be had is refused before the run starts;
- none of them can end a run, whatever it raises once it is made: figures are in `metrics.jsonl`, which comes first.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orchestration.metrics import Kind, MetricsSink, plain_figure
from orchestration.recipe import Recipe, RecipeError
from orchestration.report import write_report
from policies.run_progress import RunProgress

log = logging.getLogger(__name__)


def further_sinks(recipe: Recipe, folder: Path) -> list[MetricsSink]:
    """The sinks that a recipe's `[metrics]` asks for. Raises `RecipeError` for one that can't be had."""
    settings, sinks = recipe.metrics, list[MetricsSink]()
    if settings.report_seconds:
        sinks.append(LiveReport(folder, settings.report_seconds))
    if settings.prometheus_port is not None:
        sinks.append(PrometheusMetrics(settings.prometheus_port, settings.prometheus_address))
    if settings.wandb:
        sinks.append(WandbMetrics(folder, recipe.name, recipe.model_dump(mode="json")))
    return [Harmless(sink) for sink in sinks]


class Harmless:
    """A sink whose failures are warnings in the log."""

    def __init__(self, sink: MetricsSink) -> None:
        self.sink = sink

    def write(self, kind: Kind, stage: str, step: int, **figures: Any) -> None:
        with self._failing(f"took no figures of {kind} {step} of {stage}"):
            self.sink.write(kind, stage, step, **figures)

    def rewind(self, progress: RunProgress) -> None:
        with self._failing("could not go back"):
            self.sink.rewind(progress)

    def close(self) -> None:
        with self._failing("could not be closed"):
            self.sink.close()

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # a boundary: other people's libraries, and sinks of one's own
            log.warning("%s %s: %s: %s", type(self.sink).__name__, what, type(error).__name__, error)


class WandbMetrics:
    """A sink for Weights & Biases: each figure becomes `kind/figure`.

    Offline unless the environment's WANDB_MODE says otherwise: the run is in `RUN/wandb/`, and `wandb sync` uploads it.

    Raises `RecipeError` if the package is not installed.
    """

    def __init__(self, folder: Path, name: str, config: dict[str, Any]) -> None:
        try:
            import wandb  # pyright: ignore[reportMissingImports]  (an extra)
        except ImportError as error:
            raise RecipeError(
                "metrics.wandb is on, but the package wandb is not installed; `uv pip install wandb`, or leave it off"
            ) from error
        folder.mkdir(parents=True, exist_ok=True)
        mode: Any = os.environ.get("WANDB_MODE", "offline")
        settings = wandb.Settings(silent=True, console="off")
        self._run = wandb.init(
            project="greenroom", name=name, dir=str(folder), mode=mode, config=config, settings=settings
        )

    def write(self, kind: Kind, stage: str, step: int, **figures: Any) -> None:
        told = {f"{kind}/{name}": plain_figure(name, value) for name, value in figures.items()}
        self._run.log({"stage": stage, f"{kind}/step": step} | told)

    def rewind(self, progress: RunProgress) -> None:
        pass

    def close(self) -> None:
        self._run.finish()  # once is enough, twice does nothing


class PrometheusMetrics:
    """A sink that is read: the latest figures of a run at `http://ADDRESS:PORT/metrics`.

    A figure becomes the gauge `greenroom_KIND_FIGURE{stage="..."}`; the number in the name of an actor becomes a label:
    `greenroom_step_busy_share{stage="rl-1", actor="generator-0"}`.

    Raises `RecipeError` if the port is taken.
    """

    def __init__(self, port: int, address: str = "127.0.0.1") -> None:
        from prometheus_client import CollectorRegistry, start_http_server

        self._registry = CollectorRegistry()
        self._gauges: dict[str, Any] = {}
        try:
            self._server, self._thread = start_http_server(port, addr=address, registry=self._registry)
        except OSError as error:
            raise RecipeError(f"metrics.prometheus_port = {port}: {error}; choose another port") from error
        self.port = self._server.server_port
        """Where it listens; another than was asked for if that was 0."""
        self._open = True

    def write(self, kind: Kind, stage: str, step: int, **figures: Any) -> None:
        self._set(f"greenroom_{kind}", "Steps that are through, by stage.", stage, "", step)
        for name, value in figures.items():
            figure = plain_figure(name, value)
            if isinstance(figure, int | float):
                base, actor = _actor_of(name)
                self._set(f"greenroom_{kind}_{base}", f"Figure {base} of the latest {kind}.", stage, actor, figure)

    def rewind(self, progress: RunProgress) -> None:
        pass

    def close(self) -> None:
        if self._open:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
            self._open = False

    def _set(self, name: str, told: str, stage: str, actor: str, value: float) -> None:
        from prometheus_client import Gauge

        name = re.sub(r"[^a-zA-Z0-9_]", "_", name)
        if name not in self._gauges:
            self._gauges[name] = Gauge(name, told, ["stage", "actor"], registry=self._registry)
        self._gauges[name].labels(stage, actor).set(value)


_ACTOR = re.compile(r"(.+)_([a-z]+-\d+)")


def _actor_of(name: str) -> tuple[str, str]:
    """`busy_share_generator-0` -> `busy_share`, `generator-0`; others keep their name and have no actor."""
    match = _ACTOR.fullmatch(name)
    return (match[1], match[2]) if match else (name, "")


class LiveReport:
    """Renews a run's `report.html` while it goes on, on a thread of its own, not more often than `every_s` seconds.

    The run's end writes the last one; this sink only sees to those before it.
    """

    def __init__(
        self,
        folder: Path,
        every_s: float,
        render: Callable[[Path], Path] = write_report,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._every_s, self._render, self._now = folder, every_s, render, now
        self._last = now()
        self._thread: threading.Thread | None = None

    def write(self, kind: Kind, stage: str, step: int, **figures: Any) -> None:
        busy = self._thread is not None and self._thread.is_alive()
        if not busy and self._now() - self._last >= self._every_s:
            self._last = self._now()
            self._thread = threading.Thread(target=self._renew, name="live-report")
            self._thread.start()

    def rewind(self, progress: RunProgress) -> None:
        pass

    def close(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _renew(self) -> None:
        try:
            self._render(self._folder)
        except OSError as error:  # a full disk, say: the run itself will say so where it matters
            log.warning("the report could not be renewed: %s", error)
