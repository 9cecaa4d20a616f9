"""Defect: fairseq evaluates settings as Python code, including settings from a checkpoint.

Check: the module has no `eval` of its own. It gets one that supports literals and arithmetic only, for settings such
as `--adam-betas "(0.9, 0.98)"` or `--encoder-layers "[(512, 3)] * 20"`.
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
LONGEST = 100_000  # elements of a repeated list or string: far more than any setting has


def evaluate(expression: str) -> Any:
    """Return the value of a Python literal, or of sums, differences, products and quotients of literals.

    Any other expression raises UserError.
    """
    if not isinstance(expression, str):  # fairseq relies on this error of `eval`
        raise TypeError(f"the expression must be a string; got a {type(expression).__name__}")
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, ArithmeticError, RecursionError, MemoryError) as error:
        got = expression[:200]
        raise UserError(f"a setting must be a value such as 0.1 or [(512, 3)] * 20; got {got!r} ({error})") from error


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
    """Define `eval` in the module."""
    vars(module).setdefault("eval", evaluate)
