"""A driver for the tests: rehearses a small recipe in many settings, in a process of its own, and prints the traces.

    python -m tests.orchestration.rehearse_all [MODULE ...]

Imports the modules first, so that addresses and the order of imports differ between processes.
"""

import importlib
import json
import logging
import sys
from typing import Any

from orchestration.drill import Drill
from orchestration.simulate import STRATEGIES
from orchestration.simulation import Setting, rehearse
from tests.orchestration.small_recipe import small_recipe

ORDERS_AND_PLANS: tuple[tuple[int | None, int | None], ...] = ((None, None), (5, 8), (11, 3))
"""Seeds of an order of actors and of a fault plan."""


def rehearse_all(*modules: str) -> dict[str, Any]:
    """What came of each setting, by its name."""
    for module in modules:
        importlib.import_module(module)
    logging.disable(logging.CRITICAL)
    drill, found = Drill(small_recipe()), {}
    for strategy in STRATEGIES:
        recipe = small_recipe(strategy)
        for explore, faults in ORDERS_AND_PLANS:
            rehearsal = rehearse(
                Setting(
                    recipe=recipe,
                    stage="rl",
                    balancer=recipe.balancer,
                    explore=explore,
                    plan=None if faults is None else drill.plan(faults),
                    restarts=9,
                    contents=True,
                )
            )
            found[f"{strategy} explore={explore} faults={faults}"] = {
                "hash": rehearsal.trace_hash,
                "events": rehearsal.events,
                "figures": rehearsal.figures,
            }
    return found


if __name__ == "__main__":
    print(json.dumps(rehearse_all(*sys.argv[1:])))
