"""`greenroom bench`: what is measured, side by side in one run."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from orchestration.archive.commands import bench_archive
from orchestration.terminal import AsJson, console, ending_cleanly, run_interruptibly, told

AllowWeaker = Annotated[
    bool,
    typer.Option(
        "--allow-weaker", help="Measure even where calls can't be fully protected; the figures name what is missing."
    ),
]

LONGEST_S = 3600.0

app = typer.Typer(no_args_is_help=True, help="Measurements, side by side in one run.")
app.command("archive")(bench_archive)


def _say(text: str) -> None:
    """What is being measured, on standard error: a measurement takes minutes."""
    console.print(f"[dim]{escape(text)}[/]")


@app.command("mailbox")
def bench_mailbox(
    seconds: Annotated[float, typer.Option(min=0.1, max=LONGEST_S, help="How long each side is measured.")] = 4.0,
    in_flight: Annotated[int, typer.Option(min=1, help="Requests outstanding at any time.")] = 3000,
    as_json: AsJson = False,
) -> None:
    """Mailbox requests per second against pipelined plain Ray calls."""
    from orchestration.bench.mailbox import bench_mailbox as measure

    figures = run_interruptibly(measure(seconds=seconds, in_flight=in_flight, say=_say))
    if as_json:
        print(figures.model_dump_json())
        return
    print(
        f"mailbox: {figures.mailbox_per_s:,.0f}/s  plain Ray: {figures.plain_per_s:,.0f}/s  ratio: {figures.ratio:.1f}"
    )


@app.command("burst")
def bench_burst(
    calls: Annotated[int, typer.Option(min=1, help="Calls that are submitted at once.")] = 45_000,
    environments: Annotated[int, typer.Option(min=1, help="Environment actors, which share the machine's cores.")] = 2,
    kill_every: Annotated[
        float,
        typer.Option(min=0, max=LONGEST_S, help="Kill a jail, zygote or init every so often, in seconds; 0 for never."),
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the calls' order and of who is killed.")] = 0,
    allow_weaker: AllowWeaker = False,
    as_json: AsJson = False,
) -> None:
    """Many tool calls at once: is each answered once and rightly, how fast, in how much memory?"""
    from orchestration.bench.burst import bench_burst as measure
    from orchestration.bench.tools import UnprotectedCall

    with told("not measured", UnprotectedCall):
        figures = run_interruptibly(measure(calls, environments, kill_every, seed, allow_weaker=allow_weaker, say=_say))
    print(figures.model_dump_json() if as_json else figures.model_dump_json(indent=2))
    if not figures.flawless:
        raise SystemExit(1)


@app.command("tools")
def bench_tools(
    seconds: Annotated[
        float, typer.Option(min=0.1, max=LONGEST_S, help="How long each side of each kind is measured.")
    ] = 6.0,
    rounds: Annotated[int, typer.Option(min=1, help="Alternating rounds in which that is done.")] = 3,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Calls at once; by default two for each core.")] = None,
    allow_weaker: AllowWeaker = False,
    as_json: AsJson = False,
) -> None:
    """Isolated calls per second against spawning `python file.py` for each, without isolation."""
    from orchestration.bench.tools import UnprotectedCall
    from orchestration.bench.tools import bench_tools as measure

    with told("not measured", UnprotectedCall):
        figures = run_interruptibly(measure(seconds, rounds, concurrency, allow_weaker, say=_say))
    if as_json:
        print(figures.model_dump_json())
        return
    for name, kind in figures.kinds.items():
        print(f"{name}: {kind.ours_per_s:,.1f}/s  spawn: {kind.spawn_per_s:,.1f}/s  ratio: {kind.ratio:.1f}")
    for weakness in figures.weaknesses:
        print(f"not protected as it should be: {weakness}")


@app.command("learner")
def bench_learner(
    threads: Annotated[int, typer.Option(min=1, help="Compute threads of each side.")] = 2,
    model: Annotated[list[str] | None, typer.Option(help="quickstart or llama_135m; repeatable.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Steps of each side.")] = None,
    as_json: AsJson = False,
) -> None:
    """Tokens per second and peak memory of a learner step against a plain padded step with transformers."""
    with ending_cleanly(), told("not measured", RuntimeError):
        from orchestration.bench.learner import bench_learner as measure
        from orchestration.bench.learner import known_models

        figures = measure(threads, known_models(model), rounds, say=_say)
    if as_json:
        print(figures.model_dump_json())
        return
    for name, found in figures.models.items():
        print(
            f"{name}: {found.packed.tokens_per_s:,.0f} tokens/s against {found.plain.tokens_per_s:,.0f} "
            f"({found.tokens_per_s_ratio:.2f} times), peak memory {found.packed.peak_bytes >> 20:,} MiB "
            f"against {found.plain.peak_bytes >> 20:,} MiB ({found.peak_memory_ratio:.2f} times)"
        )
