"""`greenroom chat`.

Exit codes: 0 left, 1 the engine failed, 2 the input is not usable (a model, an option, this machine), 130 interrupted
before the chat began or, with `--prompt`, before its end.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner

from orchestration.archive.terminal import plain
from orchestration.engine_environment import host_engine_here
from orchestration.recipe import RecipeError
from orchestration.side_by_side import usable_cores
from orchestration.terminal import console, ending_signals, told


def chat(
    model: Annotated[Path, typer.Option(help="A model: a folder in Hugging Face format, such as a run's checkpoint.")],
    prompt: Annotated[str | None, typer.Option(help="Answer this and exit.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of one model turn.")] = 1024,
    temperature: Annotated[float, typer.Option(min=0, help="Of sampling; 0 takes the likeliest token.")] = 0.6,
    seed: Annotated[int, typer.Option(help="Of sampling.")] = 0,
    max_turns: Annotated[int, typer.Option(min=1, help="Model turns from one message to the next.")] = 10,
    context: Annotated[
        int | None, typer.Option(min=2, help="Tokens of the whole conversation (what the model takes, 8192 at most).")
    ] = None,
    use_tools: Annotated[bool, typer.Option("--tools/--no-tools", help="Whether the model may run code.")] = True,
    tool: Annotated[
        list[str] | None,
        typer.Option(
            help="jupyter_code (cells of a session, the default) or python_code_with_standard_io (single programs); "
            "repeatable. Checkpoints of a run have what they were trained with."
        ),
    ] = None,
    instructions: Annotated[
        bool | None, typer.Option(help="Whether the first message is put as problems are in training.")
    ] = None,
    opening: Annotated[str | None, typer.Option(help="What each answer begins with, such as '<reason>'.")] = None,
    save_to: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where /save saves (runs/chats/ and the model's name)."),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where figures that cells draw go (figures/ in that folder)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --prompt: print all turns as JSON.")] = False,
) -> None:
    """Chat with a model that can run code: streams, keeps a session, saves to an archive. /help lists the commands."""
    host_engine_here(log_level="ERROR")
    from actors.engines.engine import EngineFailed
    from orchestration.chat.settings import Asked, settle
    from orchestration.preflight import untold_of_tools
    from policies.conversation import MessageTooLong

    if as_json and prompt is None:
        raise RecipeError("--json prints the turns of one answer; give --prompt too")
    asked = Asked(
        model=model,
        context=context,
        max_tokens=max_tokens,
        max_turns=max_turns,
        temperature=temperature,
        seed=seed,
        use_tools=use_tools,
        tools=_tools(tool),
        instructions=instructions,
        opening=opening,
    )
    settings = settle(asked)
    told_too_little = untold_of_tools(model, settings.chat, settings.limits.tools)
    if settings.recipe is None and told_too_little:
        console.print(told_too_little, soft_wrap=True, highlight=False, markup=False)
    saves = save_to or Path("runs") / "chats" / _name_of(model)
    try:
        with _ended_by_signals(), told("the engine failed", EngineFailed):
            _chat(settings, prompt, saves, figures, as_json)
    except MessageTooLong as error:
        raise RecipeError(str(error)) from None
    except KeyboardInterrupt:
        console.print("interrupted")
        raise SystemExit(130) from None


def _chat(settings: Any, prompt: str | None, saves: Path, figures: Path | None, as_json: bool) -> None:
    import uvloop

    from orchestration.chat.figures import Figures
    from orchestration.chat.loop import ChatLoop
    from orchestration.chat.play import ChatPlayer
    from orchestration.chat.saving import FIGURES
    from orchestration.chat.turn_view import TurnView

    out = Console(quiet=as_json)
    view = TurnView(out, settings.chat.decode, settings.chat.stop_ids)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        stack = AsyncExitStack()
        try:
            with _muted() as terminal, _spinning(terminal, f"loading {settings.model}"):
                engine, interpreters = runner.run(_open(settings, stack))
            drawn = None if interpreters is None else Figures(interpreters, figures or saves / FIGURES)
            player = ChatPlayer(settings, engine, interpreters, view, drawn)
            if prompt is not None:
                runner.run(player.answer(prompt))
                if as_json:
                    saved = [str(path) for path in drawn.saved] if drawn is not None else []
                    print(json.dumps(_as_dict(player.conversation, settings) | {"figures": saved}))
                return
            _introduce(settings, out)
            if isinstance(sys.stdin, io.TextIOWrapper):  # always, but for tests in this process
                sys.stdin.reconfigure(errors="surrogateescape")  # a line that is no UTF-8 must not end the chat
            if sys.stdin.isatty():
                import readline  # noqa: F401  (gives `input` a line editor)
            ChatLoop(player, runner, out, input, model=settings.model, saves=saves).run()
        finally:
            runner.run(stack.aclose())


async def _open(settings: Any, stack: AsyncExitStack) -> tuple[Any, Any]:
    """Start engine and sandbox; the stack closes them."""
    from env.interpreters import Interpreters
    from orchestration.hosted_engine import hosted_engine

    interpreters = None
    if settings.limits.tools:
        interpreters = Interpreters(settings.limits.call, workers=1, run_id=f"chat-{os.getpid()}")
        stack.push_async_callback(interpreters.close)
    hosted = hosted_engine(settings.model, settings.engine, threads=usable_cores(), seed=settings.seed)
    engine, _ = await stack.enter_async_context(hosted)
    return engine, interpreters


def _introduce(settings: Any, out: Console) -> None:
    limits = settings.limits
    tools = f"tools: {', '.join(limits.tools)}" if limits.tools else "no tools"
    trained = f"; prompt and tools as in {settings.recipe}" if settings.recipe else ""
    out.print(
        f"{settings.model}, {limits.max_tokens} tokens of context, {tools}{trained}", style="dim", highlight=False
    )
    out.print("Ctrl-C stops an answer, /help lists commands, /exit leaves", style="dim", highlight=False)


def _as_dict(conversation: Any, settings: Any) -> dict[str, Any]:
    """A conversation's turns, with their tokens, log-probabilities and calls."""
    from orchestration.archive.transcript import transcript

    trajectory = conversation.trajectory(0)
    turns = [
        {
            "kind": step.kind,
            "text": step.text,
            "ids": [token.id for token in step.tokens],
            "logprobs": [token.logprob for token in step.tokens if token.logprob is not None],
            "calls": [record.model_dump() for record in step.calls],
        }
        for step in transcript(trajectory, settings.chat.decode)
    ]
    return {"model": str(settings.model), "seed": settings.seed, "finish": trajectory.finish, "turns": turns}


def _tools(given: list[str] | None) -> tuple[Any, ...] | None:
    from policies.tool_calls import SCHEMAS

    stray = [name for name in given or [] if name not in SCHEMAS]
    if stray:
        raise RecipeError(f"there is no tool {stray[0]!r}; --tool takes {' and '.join(SCHEMAS)}")
    return tuple(dict.fromkeys(given)) if given else None


def _name_of(model: Path) -> str:
    """The model's name; a checkpoint's has its run's in front."""
    folder = model.resolve()
    return f"{folder.parent.parent.name}-{folder.name}" if folder.parent.name == "checkpoints" else folder.name


@contextmanager
def _muted() -> Iterator[Console]:
    """Keep what vLLM, torch and their libraries write while they load off the terminal; the console still gets there.

    What went wrong is in the exception; what they wrote is shown beside it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryFile() as written, ExitStack() as undo:
        own = [os.dup(1), os.dup(2)]
        for number, descriptor in enumerate(own, 1):
            os.dup2(written.fileno(), number)
            undo.callback(os.close, descriptor)
            undo.callback(os.dup2, descriptor, number)
        terminal = undo.enter_context(open(own[1], "w", closefd=False))
        try:
            yield Console(file=terminal)
        except Exception:  # whatever it is: the reader needs what was written before it
            sys.stdout.flush()
            sys.stderr.flush()
            written.seek(0)
            terminal.write(written.read().decode(errors="replace"))
            raise
        sys.stdout.flush()
        sys.stderr.flush()


def _spinning(terminal: Console, text: str) -> Live:
    # Not `terminal.status`: that would bring to the terminal what is written meanwhile.
    spinner = Spinner("dots", plain(text))
    return Live(spinner, console=terminal, transient=True, redirect_stdout=False, redirect_stderr=False)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and a terminal that closes end the chat by an exception, so that engine and sandbox are closed."""

    def leave(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in ending_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
