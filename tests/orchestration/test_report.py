"""The report: one page from whatever a run left behind."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestration.cli import app
from orchestration.metrics import JsonlMetrics, Record, wilson_interval
from orchestration.plot_frame import stretches
from orchestration.plots import draw_all
from orchestration.recipe import RecipeError
from orchestration.report import render, write_report
from orchestration.report_source import read_run

FAMILIES = {"accuracy_sums": 0.5, "accuracy_word_problems": 0.25}


class Page(HTMLParser):
    """The page's text outside of scripts and styles, its tags, and what it loads."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self.tags, self.loads = "", [], []
        self._hidden = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._hidden += tag in ("script", "style")
        self.loads += [value for name, value in attrs if name in ("src", "href") and value]

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.text += data + "\n"


def evaluation(accuracy: float) -> dict[str, Any]:
    solved = round(accuracy * 256)
    low, high = wilson_interval(solved, 256)
    return {
        "problems": 256,
        "accuracy": solved / 256,
        "accuracy_low": low,
        "accuracy_high": high,
        "mean_response_tokens": 80.0,
        "mean_tool_calls": 1.5,
        "tool_error_share_in_correct": 0.25,
    }


def step_figures(step: int) -> dict[str, float]:
    return {
        "reward_mean": 0.1 * step,
        "solved_share": 0.1 * step,
        "response_tokens_mean": 80.0,
        "tool_error_share": 0.3,
        "tool_error_share_in_correct": 0.2,
        "truncated_share": 0.01,
        "no_answer_share": 0.02,
        "queued_share": 0.2,
        "kept_rollouts": 64,
        "kv_used_share_generator-0": 0.9,
        "kv_used_share_generator-1": 0.8,
        "tokens_per_s": 1000.0,
        "time_rollout_s": 5.0,
        "time_learn_s": 2.0,
        "time_sync_s": 0.5,
        "time_total_s": 8.0,
        "generator_idle_share": 0.4,
        "staleness_mean": 0.6,
        "staleness_max": 1.0,
        "learner_engine_mismatch_mean_abs": 0.01,
        "learner_mismatch_kl": float("nan") if step == 2 else 1e-4,
        "learner_gradient_norm": 0.5,
        "learner_entropy": 0.4,
    }


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run with fine-tuning, two stages of three steps each, and three evaluations."""
    folder = tmp_path / "quickstart"
    with JsonlMetrics(folder / "metrics.jsonl") as sink:
        for step in range(1, 5):
            sink.write("fine_tune", "sft", step, learner_loss=2.0 / step, learner_learning_rate=1e-3)
        sink.write("evaluation", "sft", 0, **evaluation(0.43), **FAMILIES)
        for step in range(1, 7):
            sink.write("step", "rl-1" if step <= 3 else "rl-2", step, **step_figures(step))
            if step % 3 == 0:
                sink.write("evaluation", f"rl-{step // 3}", step, **evaluation(0.43 + 0.06 * step), **FAMILIES)
    summary = {
        "name": "quickstart",
        "engine": "vllm",
        "sandbox": "nsjail",
        "wall_seconds": 421.0,
        "seed": 7,
        "stages": [{"name": name, **evaluation(a)} for name, a in (("sft", 0.43), ("rl-1", 0.61), ("rl-2", 0.79))],
        "generators": {"generator-0": {"turns": 5200, "share": 0.52}, "generator-1": {"turns": 4800, "share": 0.48}},
        "peak_in_flight": 64,
        "queued_share": 0.21,
        "finished": True,
        "reason": "",
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "recipe.toml").write_text('name = "quickstart"\nseed = 7\n')
    return folder


def drawn(records: list[Record], title: str) -> Any:
    """The figure of that title; plotly's figures get their attributes at run time, which type checkers can't see."""
    found = {each.title: each.figure for each in draw_all(records)}[title]
    assert found is not None, f"{title} was not drawn"
    return found


def test_a_whole_run_gives_every_figure_and_no_complaint(run_folder: Path) -> None:
    page = write_report(run_folder).read_text()

    assert all(each.figure is not None for each in draw_all(read_run(run_folder).records))
    assert page.count("Plotly.newPlot(") == len(draw_all([])) + page_library_mentions(page)
    text = Page(page).text
    assert "Not drawn" not in text
    assert "did not finish" not in text
    assert "Held-out accuracy went from 43.0% (sft) to 78.9% (rl-2)." in text
    assert "7 min 01 s" in text
    assert "5,200 (52.0%)" in text


def page_library_mentions(page: str) -> int:
    """How often plotly's own script mentions the call that draws a figure."""
    from plotly.offline import get_plotlyjs

    assert get_plotlyjs() in page
    return get_plotlyjs().count("Plotly.newPlot(")


def test_the_page_loads_nothing_from_elsewhere(run_folder: Path) -> None:
    assert Page(write_report(run_folder).read_text()).loads == []


def test_stage_boundaries_lie_between_the_stages_steps(run_folder: Path) -> None:
    records = read_run(run_folder).records
    assert stretches([r for r in records if r["kind"] == "step"]) == [("rl-1", 1, 3), ("rl-2", 4, 6)]
    figure = drawn(records, "Reward")
    assert [shape.x0 for shape in figure.layout.shapes] == [3.5]
    assert [note.text for note in figure.layout.annotations] == ["rl-1", "rl-2"]


def test_stages_that_count_their_own_steps_follow_one_another() -> None:
    own = [{"kind": "step", "stage": s, "step": i, "reward_mean": 0.5} for s in ("rl-1", "rl-2") for i in (1, 2, 3)]
    assert stretches(own) == [("rl-1", 1, 3), ("rl-2", 4, 6)]
    assert list(drawn(own, "Reward").data[0].x) == [1, 2, 3, 4, 5, 6]


def test_the_parts_of_a_step_add_up_to_its_total(run_folder: Path) -> None:
    figure = drawn(read_run(run_folder).records, "Time of a step")
    assert {bar.name for bar in figure.data} == {"generation and tools", "learning", "weight sync", "other"}
    assert [sum(values) for values in zip(*(bar.y for bar in figure.data), strict=True)] == pytest.approx([8.0] * 6)


def test_a_figure_that_is_null_leaves_a_gap(run_folder: Path) -> None:
    figure = drawn(read_run(run_folder).records, "Engine against learner")
    kl = next(line for line in figure.data if line.name == "KL")
    assert list(kl.y) == [1e-4, None, 1e-4, 1e-4, 1e-4, 1e-4]


def test_error_bars_are_the_recorded_intervals(run_folder: Path) -> None:
    figure = drawn(read_run(run_folder).records, "Held-out accuracy")
    bars = figure.data[0]
    assert list(bars.x) == ["sft", "rl-1", "rl-2"]
    assert bars.y[0] - bars.error_y.arrayminus[0] == pytest.approx(wilson_interval(110, 256).low)
    assert bars.y[0] + bars.error_y.array[0] == pytest.approx(wilson_interval(110, 256).high)


def test_a_run_that_died_gets_a_page_from_its_metrics(run_folder: Path) -> None:
    (run_folder / "summary.json").unlink()
    lines = (run_folder / "metrics.jsonl").read_bytes()
    (run_folder / "metrics.jsonl").write_bytes(lines[: lines.index(b'"rl-2"') + 9])  # in the middle of a line

    text = Page(write_report(run_folder).read_text()).text
    assert "summary.json is absent" in text
    assert "from 43.0% (sft) to 60.9% (rl-1)" in text


def test_a_run_that_was_stopped_says_so(run_folder: Path) -> None:
    summary = json.loads((run_folder / "summary.json").read_text())
    summary |= {"finished": False, "reason": "interrupted in stage rl-2"}
    (run_folder / "summary.json").write_text(json.dumps(summary))
    assert "This run did not finish: interrupted in stage rl-2" in Page(render(read_run(run_folder))).text


def test_an_empty_folder_gets_a_page_that_says_what_is_missing(tmp_path: Path) -> None:
    text = Page(write_report(tmp_path).read_text()).text
    for missing in ("recipe.toml is absent", "summary.json is absent", "metrics.jsonl is absent or empty"):
        assert missing in text
    assert "no optimiser step was recorded" in text
    assert "No stage was evaluated." in text


@pytest.mark.parametrize("content", ["{torn", "[]", "null", '{"stages": 3, "generators": [1]}'])
def test_a_broken_summary_does_not_stop_the_page(run_folder: Path, content: str) -> None:
    (run_folder / "summary.json").write_text(content)
    assert "from 43.0% (sft) to 78.9% (rl-2)" in Page(render(read_run(run_folder))).text


def test_metrics_with_a_broken_line_are_named(run_folder: Path) -> None:
    path = run_folder / "metrics.jsonl"
    path.write_text("not json\n" + path.read_text())
    assert "line 1 is not JSON" in Page(render(read_run(run_folder))).text


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError, match="nowhere"):
        write_report(tmp_path / "nowhere")


def test_a_folder_that_holds_no_run_gets_no_report(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a run")
    done = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert isinstance(done.exception, RecipeError) and f"no run at {tmp_path}" in str(done.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_what_comes_from_the_folder_is_text_and_never_markup(run_folder: Path) -> None:
    attack = "</script></pre><img src=x onerror=alert(1)>"
    summary = json.loads((run_folder / "summary.json").read_text())
    summary |= {"name": attack, "engine": attack, "finished": False, "reason": attack}
    summary["stages"][0]["name"] = attack
    summary["generators"][attack] = {"turns": 1, "share": 0.0}
    (run_folder / "summary.json").write_text(json.dumps(summary))
    part = {"kind": attack, "text": attack}
    example = {"title": attack, "problem": attack, "gold": attack, "correct": False, "parts": [part]}
    (run_folder / "examples.json").write_text(json.dumps([example]))
    with JsonlMetrics(run_folder / "metrics.jsonl") as sink:
        sink.write("evaluation", attack, 9, **evaluation(0.5))
        sink.write("step", attack, 9, **{f"kv_used_share_{attack}": 0.5}, reward_mean=0.5)

    page = Page(write_report(run_folder).read_text())
    assert "img" not in page.tags
    assert page.text.count("onerror=alert(1)") >= 7


def test_examples_show_who_said_what(run_folder: Path) -> None:
    example = {
        "title": "rl-2, step 6",
        "problem": "What is 12 * 12?",
        "gold": "144",
        "correct": True,
        "parts": [{"kind": "model", "text": "print(12 * 12)"}, {"kind": "tool", "text": "144"}],
    }
    (run_folder / "examples.json").write_text(json.dumps([example]))
    page = render(read_run(run_folder))
    assert re.search(r'class="part model"><span>model</span><pre>print\(12 \* 12\)</pre>', page)
    assert re.search(r'class="part tool"><span>tool</span><pre>144</pre>', page)
    assert '<span class="right">right</span>' in page


def test_evaluations_of_one_state_stand_side_by_side() -> None:
    records = [{"kind": "evaluation", "stage": "rl-1", "step": step, "accuracy": 0.5} for step in (10, 20, 20)]
    figure = drawn(records, "Held-out accuracy")
    assert len(set(figure.data[0].x)) == 3
