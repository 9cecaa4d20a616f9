"""Patches: what is given to `from_pretrained` is unpacked wherever an archive says, and need not be there at all.

As published, names with `..` and links lead out of the folder that an archive is unpacked to, and what an absolute name
stands for is moved away; here the archive is refused. A name that is nothing ends as a TypeError; here as a sentence.
"""

import os
import tarfile
from types import ModuleType
from typing import Any, List

from fairseq_modern.errors import UserError
from fairseq_modern.patching import StandIn, wrap


class _Archive(tarfile.TarFile):
    def getnames(self) -> List[str]:
        """The names in the archive, checked; fairseq moves what their common beginning names."""
        names = super().getnames()
        for name in names:
            if os.path.isabs(name) or os.pardir in name.split("/"):
                raise UserError(f"{self.name!r} was not unpacked: expected names within a folder, got {name}.")
        return names

    def extractall(self, *args: Any, **options: Any) -> None:
        if not hasattr(tarfile, "data_filter"):
            raise UserError(f"{self.name!r} was not unpacked: that is safe with Python 3.10.12, 3.11.4 or newer only.")
        try:
            super().extractall(*args, **{"filter": "data", **options})
        except tarfile.FilterError as error:
            raise UserError(f"{self.name!r} was not unpacked: expected files within a folder, got: {error}.") from error


def patch(module: ModuleType) -> None:
    """Patch `fairseq.file_utils.load_archive_file`; a filter that a fork asks for stays."""

    @wrap(module)
    def load_archive_file(original: Any, archive_file: Any) -> Any:
        found = original(archive_file)
        if found is None:
            raise UserError(f"there is no {archive_file}: expected a folder, an archive, or an address of one.")
        return found

    module.tarfile = StandIn(tarfile, open=_Archive.open)  # type: ignore[attr-defined]
