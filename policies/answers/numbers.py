"""Reads numbers as exact rationals: no floating point, no tolerance, no evaluation of expressions.

A number is what can be read at sight: an integer, a decimal, a fraction, a mixed number, a power of ten, with a sign,
separators of thousands, a percent or degree sign, a currency, a unit, a base. `12 \\times 12` is work left to do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from policies.answers.notation import closes, unwrapped

_MOST_DIGITS = 4000
"""Python refuses to convert more than 4,300 digits."""
_LARGEST_EXPONENT = 5000

_UNSIGNED = r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d+)"
_DECIMAL = rf"(?:{_UNSIGNED}(?:\.\d+)?|\.\d+)"
_INTEGER = re.compile(r"([+-]?) ?(\d+)")
_PLAIN = re.compile(_DECIMAL)
_REPEATING = re.compile(r"(\d*)\.(\d*)\\overline\{(\d+)\}")
_SCIENTIFIC = re.compile(
    rf"({_DECIMAL})(?:[eE]([+-]?\d+)| ?(?:\\times|\\cdot|\*|x) ?10 ?\^ ?(?:\{{ ?([+-]? ?\d+) ?\}}|([+-]?\d+)))"
)
_TEN = re.compile(r"10 ?\^ ?(?:\{ ?([+-]? ?\d+) ?\}|(\d+))")
_FRACTION = re.compile(
    rf"\\frac\{{ ?([+-]?) ?({_DECIMAL}) ?\}}\{{ ?([+-]?) ?({_DECIMAL}) ?\}}"
    rf"|({_DECIMAL}) ?/ ?({_DECIMAL})|\( ?({_DECIMAL}) ?\) ?/ ?\( ?({_DECIMAL}) ?\)"
)
_MIXED = re.compile(rf"({_UNSIGNED})(?: |\+| \+ )?\\frac\{{ ?(\d+) ?\}}\{{ ?(\d+) ?\}}|({_UNSIGNED}) (\d+) ?/ ?(\d+)")
_BASE = re.compile(r"(?:\\text\{)?([0-9A-Za-z]+)\}?_ ?(?:\{ ?)?(?:\\text\{ ?)?(\d+|[a-z]+)(?: ?\})*")
_BASE_NAMES = {
    name: base
    for base, name in enumerate("two three four five six seven eight nine ten eleven twelve".split(), start=2)
} | {"sixteen": 16}

_CURRENCY = re.compile(r"^([+-]?) ?(€|£|¥|₹|\\text\{ ?(?:USD|US|EUR|GBP) ?\}|USD|EUR|GBP) ?")
_DEGREES = re.compile(r" ?\^\\circ(?: ?\\text\{ ?[CF] ?\}| ?\{[CF]\})?$")
_UNIT_POWER = r"(?P<power> ?\^ ?\{?[-\d]\}?)?"
_TEXT_UNIT = re.compile(r" ?\\text\{ ?(?P<unit>[^{}]*?) ?\}" + _UNIT_POWER + "$")
_WORD_UNIT = re.compile(r"(?<=[\d})])(?P<space> ?)(?P<unit>[A-Za-z][A-Za-z .]*(?:/[A-Za-z]+)?)" + _UNIT_POWER + "$")
_NO_UNITS = frozenset(
    "or and not more less than least most to if when for is mod choose times over squared cubed factorial dozen "
    "half halves third thirds quarter quarters hundred thousand million billion trillion".split()
)
"""Words that change the number before them."""
_WORD = re.compile(r"[^\W\d_]+")
_NUMBER = re.compile(r"(?<![A-Za-z^-])\d|\d\d")
"""In a unit; one digit behind a letter is a power."""
_UNITS = {
    alias: name
    for name, aliases in {
        "mm": "millimeter millimeters millimetre millimetres",
        "cm": "centimeter centimeters centimetre centimetres",
        "m": "meter meters metre metres",
        "km": "kilometer kilometers kilometre kilometres kms",
        "in": "inch inches",
        "ft": "foot feet",
        "yd": "yard yards",
        "mi": "mile miles",
        "mg": "milligram milligrams",
        "g": "gram grams gm gms",
        "kg": "kilogram kilograms kgs",
        "lb": "pound pounds lbs",
        "oz": "ounce ounces",
        "ml": "milliliter milliliters millilitre millilitres",
        "l": "liter liters litre litres",
        "s": "sec secs second seconds",
        "min": "mins minute minutes",
        "h": "hr hrs hour hours",
        "day": "days",
        "week": "weeks",
        "month": "months",
        "year": "years yr yrs",
        "mi/h": "mph",
        "km/h": "kmh kmph kph",
        "m/s": "mps",
        "dollar": "dollars usd us",
        "cent": "cents",
        "euro": "euros eur €",
        "gbp": "£",
        "yen": "¥",
        "rupee": "rupees ₹ rs",
        "degree": "degrees deg",
        "rad": "radian radians",
        "unit": "units",
        "hz": "",
        "j": "joule joules",
        "n": "newton newtons",
        "w": "watt watts",
    }.items()
    for alias in (name, *aliases.split(" "))
    if alias
}
_PREFIXED_UNIT = re.compile(r"(?:(square|sq|cubic|cu)\.? )?(.*)")
_PER = re.compile(r" per | ?/ ?")
_POWERS = {"square": "^2", "sq": "^2", "cubic": "^3", "cu": "^3"}


@dataclass(frozen=True)
class Literal:
    """A number as it was written."""

    value: Fraction
    decimals: int = 0
    """Significant digits, if it was written as a decimal fraction; else 0."""
    percent: bool = False
    unit: str = ""
    """The canonical name of what is counted; empty if none was named."""
    base: int = 10


def parse_number(text: str) -> Literal | None:
    """The number that the whole of `text` (normalised) is; None if it is anything else."""
    plain = _INTEGER.fullmatch(text)
    if plain:
        return Literal(_signed(plain[1], Fraction(int(plain[2])))) if len(text) <= _MOST_DIGITS else None
    if len(text) > _MOST_DIGITS or not any(character.isdigit() for character in text):
        return None
    based = _BASE.fullmatch(text)
    if based:
        return _in_base(based[1], based[2])
    text, unit, percent = _without_unit(text)
    sign = ""
    while text[:1] in ("+", "-") or (text[:1] == "(" and closes(text, 0) == len(text) - 1):
        if text[0] == "(":
            text = unwrapped(text[1:-1])
        else:
            sign, text = ("-" if (sign == "-") != (text[0] == "-") else "+"), unwrapped(text[1:])
    unsigned = _unsigned(text)
    if unsigned is None:
        return None
    value, decimals = unsigned
    return Literal(_signed(sign, value), decimals=decimals, percent=percent, unit=unit)


def same_number(gold: Literal, answer: Literal) -> bool:
    """Whether the answer is the gold.

    - An integer is met by that integer alone. A percent sign there is a unit: 28% answers 28, but 2800% does not.
    - Elsewhere a percentage equals its value: 28%, 0.28 and (the sign left to the question) 28 for 28%. A bare gold
      above one may have left the sign to the question, too: 12.5% answers 12.5, but 0.5% does not answer 0.5.
    - A unit counts only where both name one; a base must be the same.
    - A decimal of at least `DOUBLE_DIGITS` digits that is the gold as a computer prints it is the gold (no integer).
    """
    if gold.base != answer.base or (gold.unit and answer.unit and gold.unit != answer.unit):
        return False
    wanted = [gold.value]
    if gold.percent and not answer.percent:
        wanted.append(gold.value / 100)
    if gold.value.denominator == 1 and not gold.percent:
        return answer.value == gold.value
    if answer.percent and not gold.percent:
        wanted = [gold.value * 100, *(wanted if gold.value > 1 else [])]
    return any(value == answer.value or printed_as(value, answer) or printed_as(answer.value, gold) for value in wanted)


def split_unit(text: str) -> tuple[str, str]:
    """`text` without the unit in `\\text{}` that it ends in, and the unit's canonical name."""
    found = _TEXT_UNIT.search(text)
    if found is None or not found.start() or not _is_unit(found):
        return text, ""
    return text[: found.start()], _unit_name(found["unit"], found["power"])


DOUBLE_DIGITS = 10
"""From so many significant digits on, a decimal is taken for the print-out of an exact value."""
_SURE_DIGITS = 15
"""Digits of a double that are exact."""


def printed_as(value: Fraction, decimal: Literal) -> bool:
    """Whether `decimal` is what `value` looks like when cut or rounded to as many digits (15 of them at most)."""
    if decimal.decimals < DOUBLE_DIGITS or not decimal.value:
        return False
    last_place = Fraction(10) ** (_magnitude(decimal.value) - min(decimal.decimals, _SURE_DIGITS))
    return abs(value - decimal.value) < last_place


def _magnitude(value: Fraction) -> int:
    """The power of ten just above |value|."""
    estimate = len(str(abs(value.numerator))) - len(str(value.denominator))
    while Fraction(10) ** estimate <= abs(value):
        estimate += 1
    while Fraction(10) ** (estimate - 1) > abs(value):
        estimate -= 1
    return estimate


def _signed(sign: str, value: Fraction) -> Fraction:
    return -value if sign == "-" else value


def _unsigned(text: str) -> tuple[Fraction, int] | None:
    """The value of an unsigned number, and the significant digits if it is a decimal fraction."""
    if _PLAIN.fullmatch(text):
        return _decimal(text), (_significant(text) if "." in text else 0)
    if found := _MIXED.fullmatch(text):
        whole, over, under = (int(_digits(part)) for part in found.groups() if part is not None)
        return (whole + Fraction(over, under), 0) if 0 < over < under else None
    if found := _FRACTION.fullmatch(text):
        if found[2]:
            over, under = _signed(found[1], _decimal(found[2])), _signed(found[3], _decimal(found[4]))
        else:
            over, under = (_decimal(part) for part in found.groups()[4:] if part is not None)
        return (over / under, 0) if under else None
    if found := _SCIENTIFIC.fullmatch(text):
        exponent = int(_digits(found[2] or found[3] or found[4]))
        if abs(exponent) > _LARGEST_EXPONENT:
            return None
        return _decimal(found[1]) * Fraction(10) ** exponent, 0
    if found := _TEN.fullmatch(text):
        exponent = int(_digits(found[1] or found[2]))
        return (Fraction(10) ** exponent, 0) if abs(exponent) <= _LARGEST_EXPONENT else None
    if found := _REPEATING.fullmatch(text):
        whole, fixed, period = found.groups()
        tail = Fraction(int(period), 10 ** len(period) - 1) / 10 ** len(fixed)
        return Fraction(int(whole or 0)) + Fraction(int(fixed or 0), 10 ** len(fixed)) + tail, 0
    return None


def _decimal(text: str) -> Fraction:
    return Fraction(_digits(text))


def _digits(text: str) -> str:
    return text.replace(",", "").replace(" ", "")


def _significant(text: str) -> int:
    return len(_digits(text).replace(".", "").lstrip("0"))


def _in_base(digits: str, name: str) -> Literal | None:
    base = int(name) if name.isdigit() and len(name) < 3 else _BASE_NAMES.get(name, 0)
    if not 2 <= base <= 36:
        return None
    try:
        return Literal(Fraction(int(digits, base)), base=base)
    except ValueError:  # a digit that the base lacks
        return None


def _without_unit(text: str) -> tuple[str, str, bool]:
    """`text` without what follows the number; the canonical unit; whether there was a percent sign."""
    unit, percent = "", False
    if found := _CURRENCY.match(text):
        unit = _unit_name(re.sub(r"\\text\{ ?| ?\}", "", found[2]))
        text = found[1] + text[found.end() :]
    if found := _DEGREES.search(text):
        return text[: found.start()], "degree", False
    if text.endswith("%"):
        return text[:-1].strip(), unit, True
    found = _TEXT_UNIT.search(text) or _WORD_UNIT.search(text)
    if found and _is_unit(found):
        return text[: found.start()], _unit_name(found["unit"], found["power"]), False
    return text, unit, percent


def _is_unit(found: re.Match[str]) -> bool:
    """`5m` may be five times m, `5 m` is five metres; `5 apples` counts apples, `5 million` is another number.

    `5 (or 6)` and `5 days, 6 hours` name two numbers.
    """
    words = found["unit"].lower().replace(".", "").split()
    if not words or not _NO_UNITS.isdisjoint(_WORD.findall(found["unit"].lower())) or _NUMBER.search(found["unit"]):
        return False
    if found.re is _TEXT_UNIT:
        return True
    known = words[0] in _UNITS or words[0] in _POWERS
    spaced = bool(found["space"])
    return (known and (spaced or len(words[0]) > 1)) or (spaced and len(words[0]) > 2 and words[0].isalpha())


def _unit_name(written: str, power: str | None = None) -> str:
    name = re.sub(r"\s+", " ", written).strip(" .").lower()
    if name in _UNITS:
        canonical, raised = _UNITS[name], ""
    elif len(parts := _PER.split(name)) > 1:
        canonical, raised = "/".join(_unit_name(part) for part in parts), ""
    else:
        prefixed = _PREFIXED_UNIT.fullmatch(name)
        assert prefixed is not None, "the pattern fits every line"
        canonical, raised = _UNITS.get(prefixed[2], prefixed[2]), _POWERS.get(prefixed[1] or "", "")
    if power:
        raised = "^" + power.strip(" ^{}")
    return canonical + raised
