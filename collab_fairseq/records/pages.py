"""Markdown tables, and pages whose tables know the commands that print them.

Such a table is between the lines `<!-- NAME: COMMAND -->` and `<!-- /NAME -->`; COMMAND may have several lines.
"""

import itertools
import re
from typing import Callable, List, Sequence, Tuple

from fairseq_modern.errors import UserError

_COMMENT = re.compile(
    r"^<!-- (?:(?P<name>[\w-]+): (?P<command>.+?)|/(?P<end>[\w-]+)) -->[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE
)


def table(rows: Sequence[Sequence[str]], numbers: bool = False, padded: bool = False) -> str:
    """A Markdown table; the first row is the header.

    Args:
        numbers: right-align all columns but the first.
        padded: align the columns in the source as well.
    """
    header, *body = rows
    lines = [list(header), *([cell.replace("|", "\\|") for cell in row] for row in body)]
    if padded:
        widths = [max(len(name) + 2, *(len(line[column]) for line in lines)) for column, name in enumerate(header)]
        lines = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines]
        rule = "|".join(":" + "-" * (width + 1) for width in widths)
    else:
        alignment = "---:" if numbers else "---"
        rule = " " + " | ".join(["---", *[alignment] * (len(header) - 1)]) + " "
    text = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([text[0], f"|{rule}|", *text[1:]])


def remake(page: str, made: Callable[[str], str], where: str = "the page") -> Tuple[str, List[str]]:
    """Make the tables of a page again.

    Args:
        page: its text.
        made: command → its table.
        where: name of the page, for errors.

    Returns:
        The new text, which is `page` itself if it has no tables, and the names of the tables that differ.
    """
    comments = list(_COMMENT.finditer(page))
    if not comments:
        return page, []
    pieces, changed, position = [], [], 0
    for begin, end in itertools.zip_longest(comments[::2], comments[1::2]):
        name = begin["name"]
        if not name or not end or end["end"] != name:
            raise UserError(
                f"{where}: tables must be between <!-- NAME: COMMAND --> and <!-- /NAME -->; "
                f"got {' '.join(begin[0].split())} before {end[0] if end else 'the end of the page'}"
            )
        try:
            inner = made(begin["command"]).strip("\n") + "\n"
        except UserError as error:
            raise UserError(f"{where}, {name}: {error}") from error
        if inner != page[begin.end() : end.start()]:
            changed.append(name)
        pieces += [page[position : begin.end()], inner]
        position = end.start()
    return "".join([*pieces, page[position:]]), changed
