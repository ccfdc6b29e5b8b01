"""Tool traces from GSM8K's solutions: their calculator annotations `<<48/2=24>>` become a program.

A step's operand that is an earlier step's result becomes that step's variable, so the program says how the numbers
hang together; numbers that the question states, and 100, which percentages are made with, stay what they are. What the
program prints is known without running it: the steps are evaluated with Python's own arithmetic. Solutions whose
program does not come to the gold give no trace.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from typing import Any

from env.tool_call import PYTHON_TOOL, ToolResult
from policies.chat_data import ChatSample, Message
from policies.demonstrations import call_text
from policies.tool_calls import result_text, schemas_of

_ANNOTATION = re.compile(r"<<([^<>=]+)=[^<>]*>>")
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])")
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
_RESULT_CHARACTERS = 512


class NoTrace(ValueError):
    """A solution that no program can be made of."""


def gsm8k_trace(question: str, solution: str, gold: str) -> ChatSample:
    """A dialogue that writes the program, reads what it prints, and answers.

    Raises `NoTrace`.
    """
    program, printed = program_of(question, solution, gold)
    result = ToolResult(id="", status="success", stdout=f"{printed}\n", exit_code=0)
    return ChatSample(
        messages=(
            Message(role="user", content=question),
            Message(role="assistant", content=f"<reason> I write the steps as code.</reason>\n{call_text(program)}"),
            Message(role="tool", content=result_text(result, _RESULT_CHARACTERS)),
            Message(
                role="assistant",
                content=f"<reason> The code printed {printed}.</reason>\n<answer>\\boxed{{{gold}}}</answer>",
            ),
        ),
        tools=tuple(schemas_of((PYTHON_TOOL,))),
        poses_problem=True,
    )


def program_of(question: str, solution: str, gold: str) -> tuple[str, str]:
    """The program, and what it prints. Raises `NoTrace`."""
    values: dict[str, float] = {}
    given = {100.0, *(float(number) for number in _NUMBER.findall(question.replace(",", "")))}
    lines = []
    for expression in _ANNOTATION.findall(solution):
        linked = _linked(expression.replace(",", "").replace("$", "").strip(), values, given)
        name = _name(len(values))
        values[name] = evaluate(linked, values)
        lines.append(f"{name} = {linked}")
    if not lines:
        raise NoTrace("the solution has no calculator annotations")
    name, value = next(reversed(values.items()))
    if value != float(gold):
        raise NoTrace(f"the last step gives {value}, but the gold is {gold}")
    return "\n".join([*lines, f"print({name})"]), str(value)


def _name(index: int) -> str:
    if index >= 26:
        raise NoTrace("more steps than letters")
    return "abcdefghijklmnopqrstuvwxyz"[index]


def _linked(expression: str, values: dict[str, float], given: set[float]) -> str:
    """The expression, its numbers replaced by the latest variable that has the value."""

    def variable(number: re.Match[str]) -> str:
        value = float(number[0])
        return next((name for name in reversed(values) if values[name] == value and value not in given), number[0])

    return _NUMBER.sub(variable, expression)


def evaluate(expression: str, values: dict[str, float]) -> float:
    """The value of an arithmetic expression over known variables, by Python's rules. Raises `NoTrace`."""
    try:
        return _value(ast.parse(expression, mode="eval").body, values)
    except (SyntaxError, ArithmeticError, RecursionError) as error:
        raise NoTrace(f"{expression!r} is not arithmetic: {error}") from error


def _value(node: ast.AST, values: dict[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.Name(id=name) if name in values:
            return values[name]
        case ast.BinOp(left, op, right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, values), _value(right, values))
        case ast.UnaryOp(op, operand) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(operand, values))
    raise NoTrace(f"{ast.unparse(node)!r} is not arithmetic")
