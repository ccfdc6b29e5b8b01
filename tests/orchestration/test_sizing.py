"""`train --dry-run` of a recipe that states its hardware, and where the model's dimensions come from."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from orchestration.recipe import ModelSettings, RecipeError
from orchestration.recipe_loading import load_recipe
from orchestration.sizing import as_dict, model_size, show, size_stages
from policies.hardware import ModelSize
from tests.orchestration.test_recipe import QUICKSTART, ROOT

EIGHT = ROOT / "recipes" / "rstar2-14b-8gpu.toml"


def shown(recipe_path: Path, *overrides: str) -> str:
    recipe = load_recipe(recipe_path, list(overrides))
    console = Console(width=80, record=True, file=io.StringIO())
    show(recipe, size_stages(recipe), console)
    return console.export_text()


@pytest.mark.parametrize("name", ["rstar2-14b-8gpu", "rstar2-14b-64gpu"])
def test_the_paper_s_run_fits_the_hardware_that_its_recipes_state(name: str) -> None:
    text = shown(ROOT / "recipes" / f"{name}.toml")
    assert "everything would fit" in text and "uncalibrated" in text
    assert "…" not in text and text.count("memory bandwidth") == 3, "one for each stage, whole at 80 columns"


def test_a_cache_that_is_too_large_would_not_fit() -> None:
    text = shown(EIGHT, "generators.engine.kv_tokens=900_000")
    assert "would not fit" in text and "everything would fit" not in text


def test_json_holds_what_the_figures_rest_on() -> None:
    recipe = load_recipe(EIGHT)
    told = json.loads(json.dumps(as_dict(recipe, size_stages(recipe))))
    assert told["model"]["layers"] == 40 and told["hardware"]["gpus"] == 8 and set(told["stages"]) == set(recipe.stages)
    # Weights in bfloat16, two bytes a parameter; KV: keys and values, 40 layers, 8 heads of 128, two bytes each.
    assert told["stages"]["rl-1"]["engine_weights"] == 2 * 14_768_307_200
    assert told["stages"]["rl-1"]["kv_bytes_per_token"] == 2 * 40 * 8 * 128 * 2


@pytest.mark.parametrize(("kind", "said", "head"), [("llama", {"head_dim": 64}, 64), ("qwen2", {}, 32)])
def test_a_model_on_disk_tells_its_own_size(tmp_path: Path, kind: str, said: dict[str, int], head: int) -> None:
    config = {
        "model_type": kind,
        "hidden_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    (tmp_path / "config.json").write_text(json.dumps(config | said))
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(bytes(2000))
    size = model_size(load_recipe(QUICKSTART).model_copy(update={"model": ModelSettings(path=tmp_path)}))
    assert size == ModelSize(parameters=1000, layers=3, hidden=128, kv_heads=2, head_size=head)


def test_a_recipe_without_hardware_has_no_sizing() -> None:
    with pytest.raises(RecipeError, match=r"needs \[hardware\]"):
        size_stages(load_recipe(QUICKSTART))
