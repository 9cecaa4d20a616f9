"""Mends: settings that are evaluated as Python code, also when they come from a checkpoint.

fairseq reads settings such as `--adam-betas "(0.9, 0.98)"` or `--encoder-layers "[(512, 3)] * 20"` with `eval`. A
checkpoint carries the settings of its model, so that loading one could run any code that its author put there. The
modules concerned get an `eval` that knows values and arithmetic and nothing else.
"""

import ast
import operator
from types import ModuleType
from typing import Any, Callable, Dict

from fairseq_modern.errors import UserError

BINARY: Dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
UNARY: Dict[type, Callable[[Any], Any]] = {ast.UAdd: operator.pos, ast.USub: operator.neg, ast.Not: operator.not_}
LONGEST = 100_000  # of a list or string, and the greatest power and shift: far above any setting


class SettingError(UserError, ValueError):
    """A setting is not a value."""


def evaluate(expression: str) -> Any:
    """Return the value of a Python expression of numbers, strings, True, False, None, lists, tuples, sets, dicts and
    arithmetic.

    Raises:
        SettingError: the expression holds anything else, such as a name or a call.
        TypeError: the expression is no string, as `eval` would; fairseq relies on it for values that are read already.
    """
    if not isinstance(expression, str):
        raise TypeError(f"expected an expression as a string, got a {type(expression).__name__}")
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, ArithmeticError, RecursionError, MemoryError) as error:
        got = expression[:200]
        raise SettingError(f"expected a value such as 0.1 or [(512, 3)] * 20, got {got!r} ({error}).") from error


def _value(node: ast.AST) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        kind = {ast.List: list, ast.Tuple: tuple, ast.Set: set}[type(node)]
        return kind(_value(element) for element in node.elts)
    if isinstance(node, ast.Dict):
        keys = [key for key in node.keys if key is not None]
        if len(keys) < len(node.keys):
            raise ValueError("a dictionary unpacked into another is not a value")
        return {_value(key): _value(value) for key, value in zip(keys, node.values, strict=True)}
    if isinstance(node, ast.UnaryOp) and type(node.op) in UNARY:
        return UNARY[type(node.op)](_value(node.operand))
    if isinstance(node, ast.BinOp) and type(node.op) in BINARY:
        left, right = _value(node.left), _value(node.right)
        _check_size(node.op, left, right)
        return BINARY[type(node.op)](left, right)
    raise ValueError(f"{type(node).__name__} is not a value")


def _check_size(op: ast.operator, left: Any, right: Any) -> None:
    """Raise ValueError for operations whose result would fill the memory."""
    if isinstance(op, ast.Mod) and not isinstance(left, (int, float)):
        raise ValueError("formatting is not arithmetic")
    if isinstance(op, ast.Pow) and (abs(left) > LONGEST or abs(right) > 64):
        raise ValueError("the power is too large")
    if isinstance(op, ast.Mult):
        for sequence, times in ((left, right), (right, left)):
            if isinstance(sequence, (list, tuple, str, bytes)) and len(sequence) * times > LONGEST:
                raise ValueError("the repetition is too long")


def patch(module: ModuleType) -> None:
    """Give the module this `eval`, which its code finds before the built-in one, unless it has one of its own."""
    vars(module).setdefault("eval", evaluate)
