"""Which libraries zygotes have in memory before a call, and which zygote a call needs.

A fork costs what the forking process has in memory (0.5 ms for a bare interpreter, 4 ms with all of the libraries
below), so there is a zygote for each set of libraries that calls name, forked from one that has all but the last of
them. The name is only a hint: any library can be imported all the same.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

LIBRARIES = ("numpy", "mpmath", "sympy", "scipy", "networkx", "pandas", "matplotlib")
"""In the order in which zygotes add them: what is used most, and what others import, comes first."""

BASE = (
    "_ast", "_sitebuiltins", "atexit", "io", "os", "math", "itertools", "functools", "collections", "re", "random",
    "json", "fractions", "decimal", "heapq", "bisect", "string", "datetime", "typing", "operator", "copy",
)  # fmt: skip
"""Modules of the standard library that every zygote has."""

WARM_UPS = {
    "sympy": """
import sympy
x, y = sympy.symbols("x y")
n = sympy.symbols("n", integer=True, positive=True)
for equation in (x**2 - 7*x + 10, x**2 + 2*x + 5, 2*x**2 - 3*x - 1, x**3 - 6*x**2 + 11*x - 6, 3*x - 4):
    str(sympy.solve(equation, x))
sympy.solve([x + y - 3, x - y - 1], [x, y])
str(sympy.simplify((x**2 - 1) / (x - 1))), sympy.latex(sympy.sqrt(2) / 2)
sympy.factor(x**2 + 3*x + 2), sympy.expand((x + y)**3), sympy.diff(sympy.sin(x) * x, x)
sympy.integrate(x**2, x), sympy.Rational(1, 3) + sympy.pi, sympy.factorint(360), sympy.N(sympy.sqrt(3))
sympy.summation(n, (n, 1, 10)), sympy.limit(sympy.sin(x) / x, x, 0), sympy.Matrix([[1, 2], [3, 4]]).det()
""",
    "matplotlib": """
import io, matplotlib.pyplot
figure, axes = matplotlib.pyplot.subplots()
axes.plot([1, 2], [3, 4], label="$x^2$")
axes.legend()
figure.savefig(io.BytesIO())
matplotlib.pyplot.close(figure)
""",
    "scipy": "import scipy.optimize, scipy.special, scipy.linalg, scipy.integrate, scipy.stats",
}
"""Library -> what a zygote runs after its import: it loads what is loaded late, and fills the library's own caches."""


def named_in(code: bytes, libraries: Sequence[str]) -> tuple[str, ...]:
    """Those of `libraries` that the code names, in their order."""
    if not libraries:
        return ()
    named = set(_names(tuple(libraries)).findall(code))
    return tuple(name for name in libraries if name.encode() in named)


@functools.cache
def _names(libraries: tuple[str, ...]) -> re.Pattern[bytes]:
    return re.compile(rb"\b(?:" + b"|".join(re.escape(name).encode() for name in libraries) + rb")\b")
