"""Tells whether a function of fairseq has the defect that a mend is for: other versions and forks may not have it."""

import inspect
from types import CodeType
from typing import Any, Set


def names(function: Any) -> Set[str]:
    """All names and strings in the code of a function and of the functions within it; a wrapped one's, if it is one."""
    found: Set[str] = set()
    codes = [inspect.unwrap(function).__code__]
    while codes:
        code = codes.pop()
        strings = {constant for constant in code.co_consts if isinstance(constant, str)}
        found |= set(code.co_names) | strings
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return found
