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
        self._outstanding = dict.fromkeys(environments, 0)
        self._last_chosen = dict.fromkeys(environments, -1)
        self._choices = 0

    def choose(self, avoid: frozenset[str], prefer: str = "") -> str:
        """An environment for one call; those in `avoid` (they just failed it) only if there is no other.

        `prefer` names the one that has the call's session, if any has.
        """
        candidates = [name for name in self._outstanding if name not in avoid] or list(self._outstanding)
        if prefer in candidates:
            candidates = [prefer]
        chosen = min(candidates, key=lambda name: (self._outstanding[name], self._last_chosen[name], name))
        self._outstanding[chosen] += 1
        self._choices += 1
        self._last_chosen[chosen] = self._choices
        return chosen

    def finished(self, environment: str) -> None:
        """One call less is outstanding at `environment`."""
        self._outstanding[environment] -= 1
        assert self._outstanding[environment] >= 0, f"{environment} finished more calls than it was given"
