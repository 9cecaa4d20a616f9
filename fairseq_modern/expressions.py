"""Patches: settings that are evaluated as Python code, also when they come from a checkpoint.

fairseq reads settings such as `--adam-betas "(0.9, 0.98)"` or `--encoder-layers "[(512, 3)] * 20"` with `eval`. A
checkpoint carries the settings of its model, so that loading one could run any code that its author put there. The
modules concerned get an `eval` that knows values and arithmetic and nothing else.
"""

import ast
import operator
from types import ModuleType
from typing import Any, Callable, Dict

from fairseq_modern.errors import UserError

OPERATORS: Dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
LONGEST = 100_000  # of a repeated list or string: far above any setting


def evaluate(expression: str) -> Any:
    """Return the value of a Python literal, or of sums, differences, products and quotients of literals.

    Raises:
        UserError: the expression holds anything else, such as a name or a call.
        TypeError: the expression is no string, as `eval` would; fairseq relies on it for values that are read already.
    """
    if not isinstance(expression, str):
        raise TypeError(f"expected an expression as a string, got a {type(expression).__name__}")
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, ArithmeticError, RecursionError, MemoryError) as error:
        got = expression[:200]
        raise UserError(f"expected a value such as 0.1 or [(512, 3)] * 20, got {got!r} ({error}).") from error


def _value(node: ast.expr) -> Any:
    if isinstance(node, (ast.List, ast.Tuple)):
        elements = [_value(element) for element in node.elts]
        return elements if isinstance(node, ast.List) else tuple(elements)
    if not isinstance(node, ast.BinOp) or type(node.op) not in OPERATORS:
        return ast.literal_eval(node)
    left, right = _value(node.left), _value(node.right)
    if isinstance(node.op, ast.Mult):
        for sequence, times in ((left, right), (right, left)):
            if isinstance(sequence, (list, tuple, str, bytes)) and len(sequence) * times > LONGEST:
                raise ValueError("the repetition is too long")
    return OPERATORS[type(node.op)](left, right)


def patch(module: ModuleType) -> None:
    """Give the module this `eval`, which its code finds before the built-in one, unless it has one of its own."""
    vars(module).setdefault("eval", evaluate)
