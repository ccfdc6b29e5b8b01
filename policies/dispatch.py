"""Which environment actor runs a call: the one that has its session; else the one with the fewest calls outstanding,
least recently chosen on ties.
"""

from __future__ import annotations


class LeastOutstanding:
    """Books of outstanding calls by environment.

    Example:
        dispatch = LeastOutstanding(["environment-0", "environment-1"])
        chosen = dispatch.choose(avoid=frozenset())
        ...
        dispatch.finished(chosen)
    """

    def __init__(self, environments: list[str]) -> None:
        if not environments:
            raise ValueError("no environment to dispatch to; give the recipe at least one")
        self._ranks = {name: (0, -1, name) for name in environments}
        """Calls outstanding, when it was last chosen, name."""
        self._choices = 0

    def choose(self, avoid: frozenset[str], prefer: str = "") -> str:
        """An environment for one call; those in `avoid` (they just failed it) only if there is no other.

        `prefer` names the one that has the call's session, if any has.
        """
        candidates = self._ranks
        if avoid:
            candidates = {name: rank for name, rank in candidates.items() if name not in avoid} or candidates
        outstanding, _, chosen = candidates[prefer] if prefer in candidates else min(candidates.values())
        self._choices += 1
        self._ranks[chosen] = outstanding + 1, self._choices, chosen
        return chosen

    def finished(self, environment: str) -> None:
        """One call less is outstanding at `environment`."""
        outstanding, last_chosen, _ = self._ranks[environment]
        assert outstanding > 0, f"{environment} finished more calls than it was given"
        self._ranks[environment] = outstanding - 1, last_chosen, environment
