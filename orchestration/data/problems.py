"""Problems from data sets: rows read, checked, converted, merged, and left out for a reason that is counted."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from orchestration.data.rows import DataError, Located, check_columns, mapping, read_rows
from orchestration.run_folder import write_whole
from policies.data_options import DatasetOptions
from policies.decontamination import Overlap
from policies.problem_sets import PROBLEM_SETS, ProblemSet, as_integer, problem_set
from policies.trajectory import Problem


@dataclass(slots=True)
class Problems:
    """What came of a data set."""

    problems: list[Problem] = field(default_factory=list)
    rows: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    """How many, by reason."""


def load_problems(options: DatasetOptions) -> Problems:
    """The problems of a data set, in its order.

    Raises `DataError` for an unknown set, and for whatever is wrong with its rows.
    """
    try:
        chosen = problem_set(options.name)
    except ValueError as error:
        raise DataError(str(error)) from error
    source = options.path or chosen.hub
    if not source:
        raise DataError(f"the set {chosen.name!r} has no place of its own; give the path of a file")
    found = _converted(chosen, source, options)
    if options.integers_only:
        leave_out(found, "gold is no integer", lambda problem: as_integer(problem.gold) is not None)
        found.problems = [each.model_copy(update={"gold": as_integer(each.gold)}) for each in found.problems]
    if options.decontaminate:
        overlap = Overlap(each.question for name in options.decontaminate for each in _evaluation_problems(name))
        leave_out(found, "overlaps with evaluation data", lambda problem: not overlap.found_in(problem.question))
    if options.keep is not None:
        kept = read_kept(options.keep)
        leave_out(found, f"not in {options.keep}", lambda problem: problem.id in kept)
    if options.limit is not None:
        found.left_out["over the limit"] += max(0, len(found.problems) - options.limit)
        found.problems = found.problems[: options.limit]
    if not found.problems:
        raise DataError(f"{source}: no problem is left of {found.rows} rows; left out: {dict(found.left_out)}")
    return found


def _evaluation_problems(name: str) -> list[Problem]:
    """Those of a set's name, or of a file; `set:file` says how a file is read."""
    known, _, path = name.partition(":")
    if known in PROBLEM_SETS:
        return load_problems(DatasetOptions(name=known, path=path)).problems
    return load_problems(DatasetOptions(path=name)).problems


def _converted(chosen: ProblemSet, source: str, options: DatasetOptions) -> Problems:
    found = Problems()
    places: dict[str, str] = {}
    """Problem id -> where it stands."""
    questions: dict[str, int] = {}
    """Question -> index of its problem."""
    ambiguous: set[str] = set()
    for located in read_rows(source, configs=chosen.configs, split=options.split or chosen.split):
        found.rows += 1
        problem = _problem(chosen, located, random.Random(f"{options.seed}/{found.rows}"))
        if problem is None:
            found.left_out["left out by the set's own rule"] += 1
            continue
        if chosen.repeats == "merge" and problem.question in questions:
            found.left_out["repeats an earlier question"] += 1
            if found.problems[questions[problem.question]].gold != problem.gold:
                ambiguous.add(problem.question)
            continue
        if problem.id in places:
            raise DataError(
                f"{located.where}: id {problem.id!r:.80} is that of {places[problem.id]} already; ids must be unique"
            )
        places[problem.id] = located.where
        questions[problem.question] = len(found.problems)
        found.problems.append(problem)
    leave_out(found, "has two different golds", lambda problem: problem.question not in ambiguous)
    return found


def _problem(chosen: ProblemSet, located: Located, rng: random.Random) -> Problem | None:
    check_columns(located, chosen.columns)
    with mapping(located):
        return chosen.convert(located.row, rng)


def leave_out(found: Problems, reason: str, stays: Callable[[Problem], bool]) -> None:
    """Keep the problems that stay, and count the others under `reason`."""
    kept = [problem for problem in found.problems if stays(problem)]
    if len(kept) < len(found.problems):
        found.left_out[reason] += len(found.problems) - len(kept)
    found.problems = kept


def read_kept(path: Path) -> set[str]:
    """The ids that a filter has kept. Raises `DataError`."""
    kept = set()
    for located in read_rows(str(path)):
        check_columns(located, ("id", "kept"))
        if located.row["kept"]:
            kept.add(located.row["id"])
    return kept


def write_problems(path: Path, problems: Iterable[Problem]) -> None:
    """Problems in our own form, which actors read (`actors.prepared`)."""
    write_whole(path, "".join(json.dumps(problem.model_dump(), ensure_ascii=False) + "\n" for problem in problems))
