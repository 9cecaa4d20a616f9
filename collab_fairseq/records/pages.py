"""Markdown tables, and generated parts of hand-written pages.

Generated parts are enclosed by two marker lines, `<!-- NAME -->` and `<!-- /NAME -->`. The first may contain a
remark: `<!-- NAME: made by collab table ... -->`.
"""

import re
from pathlib import Path
from typing import Optional, Sequence

from collab_fairseq.records.files import write_text
from fairseq_modern.errors import UserError


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


def with_part(page: str, marker: str, content: str, where: str = "the page") -> str:
    """The text of a page with `content` between the two lines of a marker; ``where`` names the page in errors."""
    name = re.escape(marker)
    begin = list(re.finditer(rf"^<!-- {name}(?::[^\n]*)? -->[ \t]*$", page, re.MULTILINE))
    end = list(re.finditer(rf"^<!-- /{name} -->[ \t]*$", page, re.MULTILINE))
    if len(begin) != 1 or len(end) != 1 or end[0].start() < begin[0].end():
        raise UserError(
            f"{where} must have the line <!-- {marker} --> once and <!-- /{marker} --> once after it; "
            f"got {len(begin)} and {len(end)} such lines"
        )
    inner = content.strip("\n")
    return page[: begin[0].end()] + "\n" + (f"{inner}\n" if inner else "") + page[end[0].start() :]


def publish(text: str, page: str, marker: Optional[str] = None, check: bool = False) -> str:
    """Write Markdown to the file `page`, or with `check` only compare it; return a report.

    With a marker, only the part of the page between its lines is replaced.
    """
    try:
        before = Path(page).read_bytes().decode("utf-8")
    except FileNotFoundError as error:
        if marker is not None:
            raise UserError(f"--output must be an existing page if --marker is given; got {page}") from error
        before = ""
    except UnicodeDecodeError as error:
        raise UserError(f"{page} must be UTF-8 text ({error.reason})") from error
    text = with_part(before, marker, text, where=page) if marker is not None else text
    if text == before:
        return f"{page} is up to date"
    if check:
        raise UserError(f"{page} is stale: run this command without --check")
    write_text(text, page)
    return f"wrote {page}"
