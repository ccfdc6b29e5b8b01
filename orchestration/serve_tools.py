"""`greenroom serve-tools`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestration.terminal import run_interruptibly


def serve_tools(
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than the loopback need a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 8088,
    token_file: Annotated[Path | None, typer.Option(help="File with the token; or set GREENROOM_TOKEN.")] = None,
    wall_seconds: Annotated[float, typer.Option(help="Time limit of a program.")] = 10.0,
    memory_mib: Annotated[int, typer.Option(help="Memory limit of a program.")] = 512,
    cores: Annotated[int, typer.Option(help="Programs at once on a machine; 0: as many as cores.")] = 0,
    most_open: Annotated[
        int, typer.Option(help="Submissions that may wait or run; more are told to try again.")
    ] = 50_000,
    environments: Annotated[int, typer.Option(help="Environment actors on Ray; 0: on this machine, without Ray.")] = 0,
    ray_address: Annotated[str | None, typer.Option(help="Ray cluster to join; without, a local one.")] = None,
    allow_open_cluster: Annotated[
        bool, typer.Option(help="Join a cluster that has no token: whoever reaches it can run anything there.")
    ] = False,
) -> None:
    """Serve the sandbox over HTTP with Code Judge's API."""
    from pydantic import ValidationError

    from env.tool_call import Limits
    from orchestration.recipe import RecipeError
    from orchestration.serving import ServeOptions, read_token
    from orchestration.serving import serve_tools as serve

    try:
        limits = Limits(wall_seconds=wall_seconds, memory_bytes=memory_mib << 20)
    except ValidationError as error:
        (first, *_) = error.errors()
        raise RecipeError(f"a program's {first['loc'][0]} can't be {first['input']}: {first['msg']}") from error
    options = ServeOptions(
        host=host,
        port=port,
        token=read_token(token_file),
        limits=limits,
        cores=cores,
        most_open=most_open,
        environments=environments,
        ray_address=ray_address,
        allow_open_cluster=allow_open_cluster,
    )
    run_interruptibly(serve(options, lambda text: print(text, flush=True)))
