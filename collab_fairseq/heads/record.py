"""Records of head analyses: settings for the checkpoint, the text, the test sets and the search."""

import os
from typing import Any, Dict, Optional, Sequence

from collab_fairseq.checkpoints import PathLike, file_setting
from collab_fairseq.records.record import Record
from collab_fairseq.scoring.significance import METHOD
from collab_fairseq.translation import TrainedModel

from .ablation import TestSet


def text_setting(trained: TrainedModel, split: str, sentences: Optional[int]) -> Dict[str, Any]:
    """A split, the checksums of its two sides, and the number of sentences (None: all)."""
    task = trained.task.cfg
    stem = os.path.join(task.data, f"{split}.{task.source_lang}-{task.target_lang}")
    files = [f"{stem}.{language}.bin" for language in (task.source_lang, task.target_lang)]
    checksums = [file_setting(path) for path in files if os.path.exists(path)]
    return {"split": split, "text": checksums, "sentences": sentences}


def settings_of_tests(trained: TrainedModel, tests: Sequence[TestSet]) -> Dict[str, Any]:
    """The test sets with their references, the search, and the method of the p values."""
    search = tests[0].search
    settings = []
    for test in tests:
        text = text_setting(trained, test.split, search["sentences"])
        settings.append({**text, "references": file_setting(test.references)})
    return {"tests": settings, "search": {"beam": search["beam"], "lenpen": search["lenpen"]}, "p": METHOD}


def new_record(
    name: str,
    command: str,
    checkpoints: Sequence[PathLike],
    settings: Dict[str, Any],
    path: Optional[PathLike] = None,
    device: Any = "cpu",
) -> Record:
    """The record of an analysis; ``settings`` are added to the names and checksums of the checkpoints."""
    files = [file_setting(checkpoint) for checkpoint in checkpoints]
    settings = {"checkpoint": files[0] if len(files) == 1 else files, **settings}
    return Record("heads", name, command, settings, path, device=device)
