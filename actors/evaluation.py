"""Evaluation on held-out problems: the same rollouts, nothing learned."""

from __future__ import annotations

from collections import Counter, defaultdict

from actors.messages import RunEvaluation
from actors.prepared import open_stream
from actors.sampling import Sampler, rollout_figures
from policies.run_progress import Figures
from policies.trajectory import Trajectory


async def evaluate(request: RunEvaluation, sampler: Sampler) -> Figures:
    """Accuracy and its companions over `options.count` held-out problems.

    A rollout that could not be finished counts as wrong: dropping it would flatter the model. With several samples,
    `problems_solved_K_times` says of how many problems K samples are right: they are not independent, so an interval
    has to know (`orchestration.evaluation.estimators`).
    """
    options = request.options
    stream = open_stream(options.problems, run_seed=0, held_out=True)
    problems = [stream.problem(index) for index in range(options.count)]
    sampled = await sampler.sample(
        problems,
        options.samples,
        stage=f"evaluation-{request.name}",
        step=0,
        limits=request.limits,
        temperature=options.temperature,
    )
    trajectories = sampled.trajectories
    figures = rollout_figures(trajectories)
    asked = options.count * options.samples
    correct = sum(trajectory.verdict.correct for trajectory in trajectories)
    counted: Figures = {
        "problems": float(options.count),
        "samples": float(options.samples),
        "correct": float(correct),
        "asked": float(asked),
        "accuracy": correct / asked,
        "mean_response_tokens": figures.get("response_tokens_mean", 0.0),
        "mean_tool_calls": figures.get("tool_calls_mean", 0.0),
        "tool_call_rate": figures.get("tool_call_rate", 0.0),
        "format_rate": figures.get("format_rate", 0.0),
        "tool_error_share": figures.get("tool_error_share"),
        "tool_error_share_in_correct": figures.get("tool_error_share_in_correct"),
        "truncated_share": figures.get("truncated_share", 0.0),
        "dropped": float(len(sampled.dropped)),
    }
    return counted | _times_solved(sampled.groups, options.samples) | _accuracy_by_family(trajectories)


def _times_solved(groups: list[list[Trajectory]], samples: int) -> Figures:
    if samples == 1:
        return {}
    times = Counter(sum(trajectory.verdict.correct for trajectory in group) for group in groups)
    return {f"problems_solved_{count}_times": float(times[count]) for count in range(samples + 1)}


def _accuracy_by_family(trajectories: list[Trajectory]) -> Figures:
    families: dict[str, list[bool]] = defaultdict(list)
    for trajectory in trajectories:
        families[trajectory.problem.family].append(trajectory.verdict.correct)
    return {f"accuracy_{name}": sum(right) / len(right) for name, right in sorted(families.items())}
