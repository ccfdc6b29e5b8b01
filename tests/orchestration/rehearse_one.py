"""A driver for the tests: rehearses a small recipe in a process of its own and prints what a trace was.

    python -m tests.orchestration.rehearse_one STRATEGY EXPLORE FAULTS [MODULE ...]

Imports the modules first, so that addresses and the order of imports differ between processes.
"""

import importlib
import json
import logging
import sys

from orchestration.drill import Drill
from orchestration.simulation import Setting, rehearse
from tests.orchestration.small_recipe import small_recipe


def main(strategy: str, explore: str, faults: str, *modules: str) -> None:
    for module in modules:
        importlib.import_module(module)
    logging.disable(logging.CRITICAL)
    recipe = small_recipe(strategy)
    rehearsal = rehearse(
        Setting(
            recipe=recipe,
            stage="rl",
            balancer=recipe.balancer,
            explore=None if explore == "-" else int(explore),
            plan=None if faults == "-" else Drill(recipe).plan(int(faults)),
            restarts=9,
            contents=True,
        )
    )
    print(json.dumps({"hash": rehearsal.trace_hash, "events": rehearsal.events, "figures": rehearsal.figures}))


if __name__ == "__main__":
    main(*sys.argv[1:])
