"""What docs/extending.md tells a researcher to write does what it says, in a copy of the checkout."""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from pathlib import Path

import pytest

from tests.support.documented import PROJECT, example, run, run_pytest

PAGE = "extending.md"
QUICKSTART = PROJECT / "recipes" / "quickstart.toml"


def edit(path: Path, *changes: tuple[str, str]) -> None:
    """Put something behind what matches, once each."""
    text = path.read_text()
    for pattern, added in changes:
        text, found = re.subn(f"(?s)({pattern})", lambda match, added=added: match[1] + added, text, count=1)
        assert found, f"{path} has nothing like {pattern}"
    path.write_text(text)


def stated(words: str) -> str:
    """Checks that the page tells of an edit in so many words."""
    text = " ".join((PROJECT / "docs" / PAGE).read_text().split())
    assert words in text, f"docs/{PAGE} no longer says {words!r}"
    return words


def name_in(literal: str, name: str) -> tuple[str, str]:
    stated(f'`"{name}"` in `{literal}`')
    return rf"\b{literal} = Literal\[", f'"{name}", '


def entry_in(table: str, entry: str) -> tuple[str, str]:
    stated(f"`{entry}` in `{table}`")
    return rf"\n{table}\b[^=]* = [{{(]\n", f"    {entry},\n"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy with all of the page's changes."""
    folder = tmp_path_factory.mktemp("checkout")
    for package in ("actors", "env", "orchestration", "policies"):
        shutil.copytree(PROJECT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    policies = folder / "policies"
    set_ = 'ProblemSet("riddles", "me/riddles", ("language", "task", "solution"), _riddles)'
    edit(policies / "problem_sets.py", (r"\n(?=_SETS = )", example(PAGE, "def _riddles") + "\n\n"))
    edit(policies / "problem_sets.py", entry_in("_SETS", set_))
    edit(
        policies / "rewards.py",
        (r"\n(?=_RULES: )", example(PAGE, "def brief_rewards") + "\n\n"),
        name_in("RewardName", "brief"),
        entry_in("_RULES", '"brief": brief_rewards'),
    )
    case = textwrap.indent(example(PAGE, 'case "ranged"'), " " * 8)
    edit(policies / "advantages.py", (r"match rule:\n", case))
    stated("a name in `AdvantageRule`")
    edit(
        policies / "options.py",
        (r"\bAdvantageRule = Literal\[", '"ranged", '),
        name_in("ObjectiveName", "mine"),
        entry_in("OBJECTIVES", '"mine": {"advantage": "ranged"}'),
    )
    edit(
        policies / "balancing_strategies.py",
        (r"\n(?=_STRATEGIES: )", example(PAGE, "class ShortestFirst") + "\n\n"),
        entry_in("_STRATEGIES", '"shortest_first": ShortestFirst'),
    )
    edit(policies / "balancing.py", name_in("StrategyName", "shortest_first"))
    edit(folder / "orchestration" / "sinks.py", (r"\n(?=class Harmless)", example(PAGE, "class RewardLog") + "\n\n"))
    return folder


def test_a_generator_of_problems_writes_a_file_that_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "make.py").write_text(example(PAGE, "xor.jsonl"))
    run(tmp_path, "make.py")
    said = run(tmp_path, "-m", "orchestration.cli", "data", "inspect", "xor.jsonl", "--as", "plain")
    assert "5000 rows, 5000 problems" in said


def test_rows_of_another_shape_become_problems(checkout: Path, tmp_path: Path) -> None:
    rows = [{"nr": 7, "language": "en", "task": "What is 1 + 1?", "solution": 2}, {"language": "de", "task": "Was?"}]
    rows[1]["solution"] = 3
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ("-m", "orchestration.cli", "data", "inspect", "r.jsonl", "--as", "riddles")
    said = run(tmp_path, *command, project=checkout)
    assert "2 rows, 1 problem" in said and "id: riddles/7" in said


def test_rewards_and_advantages_of_one_s_own_are_learned_from(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "learn.py").write_text(
        textwrap.dedent("""
        import random
        from policies import tokens
        from policies.grouping import StepRounds
        from policies.stages import ReinforcementOptions
        from policies.trajectory import UNTRAINED, Problem, Span, Trajectory, Verdict

        def rollout(sample, length, reward):
            ids, logprobs = tokens.pack_ids([1] * length), tokens.pack_floats([-1.0] * length)
            return Trajectory(
                id=f"g/{sample}", group="g", sample=sample, stage="rl", step=0, generator="", turns=1, answer_tags=1,
                problem=Problem(id="p", question="?", gold="1"), finish="answered", reward=reward,
                spans=(Span(kind="prompt", ids=tokens.pack_ids([1])),
                       Span(kind="model", ids=ids, logprobs=logprobs, version=UNTRAINED)),
                verdict=Verdict(correct=reward > 0, reason="right" if reward else "wrong"))

        options = ReinforcementOptions(kind="reinforce", steps=1, group=3, rewards="brief", objective={"name": "mine"})
        rounds = StepRounds(options, random.Random(0))
        rounds.add([[rollout(0, 2048, 1.0), rollout(1, 9999, 1.0), rollout(2, 8, 0.0)]])
        print(rounds.batch.figures()["learned_reward_mean"], *(each.advantage for each in rounds.batch.sequences))
        """)
    )
    said = [float(word) for word in run(tmp_path, "learn.py", project=checkout).split()]
    mean = (0.75 + 0.5 + 0.0) / 3
    assert said == pytest.approx([mean, *((reward - mean) / 0.75 for reward in (0.75, 0.5, 0.0))])


def test_a_strategy_of_one_s_own_is_simulated_beside_the_others(checkout: Path, tmp_path: Path) -> None:
    command = stated("greenroom simulate recipes/quickstart.toml --strategies worst_case,shortest_first").split()
    command[2] = str(QUICKSTART)
    said = json.loads(run(tmp_path, "-m", "orchestration.cli", *command[1:], "--json", project=checkout))
    own = said["strategies"]["shortest_first"]
    assert own["rollouts"] == said["strategies"]["worst_case"]["rollouts"] > 0
    assert own["trace_hash"] != said["strategies"]["worst_case"]["trace_hash"]


def test_a_name_that_stands_in_one_of_two_places_is_an_error_where_it_is_used(checkout: Path, tmp_path: Path) -> None:
    half = tmp_path / "half"
    shutil.copytree(checkout, half)
    (half / "policies" / "balancing.py").write_text((PROJECT / "policies" / "balancing.py").read_text())
    with pytest.raises(AssertionError, match="StrategyName and _STRATEGIES must name the same strategies"):
        run(tmp_path, "-m", "orchestration.cli", "simulate", str(QUICKSTART), project=half)


def test_a_sink_of_one_s_own_gets_each_step(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "sink.py").write_text(
        textwrap.dedent("""
        from pathlib import Path
        from orchestration.metrics import AllMetrics, MetricsSink
        from orchestration.sinks import Harmless, RewardLog

        log: MetricsSink = RewardLog(Path("rewards.txt"))
        sink = AllMetrics(Harmless(log))
        sink.write("evaluation", "rl-1", 0, accuracy=0.5)
        sink.write("step", "rl-1", 1, reward_mean=0.25)
        sink.close()
        sink.close()
        """)
    )
    run(tmp_path, "sink.py", project=checkout)
    assert (tmp_path / "rewards.txt").read_text() == "rl-1 1 0.25\n"


def test_an_actor_of_one_s_own_is_tested_under_a_plan(tmp_path: Path) -> None:
    (tmp_path / "greeter.py").write_text(example("simulator.md", "class Greeter(Actor)"))
    (tmp_path / "conftest.py").write_text(example("simulator.md", "pytest_plugins"))
    scene = example("simulator.md", "def test_who_asks_is_greeted").partition("def test_")[0]
    (tmp_path / "test_greeter.py").write_text(scene + example(PAGE, "FROZEN ="))
    assert "1 passed" in run_pytest(tmp_path)
