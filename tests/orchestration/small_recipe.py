"""A recipe that is rehearsed in a fraction of a second, and makes engines preempt."""

from orchestration.recipe import Recipe
from orchestration.recipe_loading import validate_recipe

ENGINE = {"max_sequence_tokens": 2048, "max_running": 16, "max_step_tokens": 512, "block_tokens": 16, "kv_tokens": 8192}


def small_recipe(strategy: str = "worst_case") -> Recipe:
    """Three engines, two environments, two rollout actors, 32 rollouts a step."""
    return validate_recipe(
        {
            "name": "small",
            "seed": 3,
            "model": {"path": "simulated"},
            "generators": {"count": 3, "engine": ENGINE},
            "environments": {"count": 2, "workers": 4},
            "rollouts": {"count": 2},
            "balancer": {"strategy": strategy, "batch": 12},
            "evaluation": {"limits": {"max_tokens": 2048}},
            "stages": {
                "rl": {
                    "kind": "reinforce",
                    "steps": 7,
                    "prompts": 4,
                    "group": 4,
                    "limits": {"max_tokens": 2048, "max_turns": 6, "max_turn_tokens": 2048},
                }
            },
        },
        "small_recipe",
    )
