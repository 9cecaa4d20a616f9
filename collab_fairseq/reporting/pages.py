"""Generated parts of hand-written pages, between markers: `<!-- NAME -->` and `<!-- /NAME -->`, each on its own line.

The first may hold a remark: `<!-- NAME: made by collab table ... -->`.
"""

import os
import re
from typing import Optional

from collab_fairseq.reporting.files import PathLike
from collab_fairseq.reporting.schema import RecordError


def with_part(page: str, marker: str, content: str, where: str = "the page") -> str:
    """The page with `content` between the two lines of a marker.

    Args:
        page: the whole text.
        marker: the name in the marker.
        content: Markdown.
        where: name of the page for errors.

    Raises:
        RecordError: the marker is not there exactly once with its end after it.
    """
    name = re.escape(marker)
    begin = list(re.finditer(rf"^<!-- {name}(?::[^\n]*)? -->[ \t]*$", page, re.MULTILINE))
    end = list(re.finditer(rf"^<!-- /{name} -->[ \t]*$", page, re.MULTILINE))
    if len(begin) != 1 or len(end) != 1 or end[0].start() < begin[0].end():
        raise RecordError(
            f"{where} must have the line <!-- {marker} --> once and <!-- /{marker} --> once after it, "
            f"got {len(begin)} and {len(end)}"
        )
    inner = content.strip("\n")
    return page[: begin[0].end()] + "\n" + (f"{inner}\n" if inner else "") + page[end[0].start() :]


def read_page(path: PathLike) -> Optional[str]:
    """The text of a page with its line ends; None where there is no file.

    Raises:
        RecordError: it cannot be read as UTF-8 text.
    """
    try:
        with open(path, encoding="utf-8", newline="") as stream:
            return stream.read()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"cannot read {os.fspath(path)} as UTF-8 text: {error}") from error
