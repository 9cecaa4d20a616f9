"""The results of runs from their records: a table, a figure and some translations side by side."""

import sys
from pathlib import Path
from typing import List, Sequence, Tuple

from collab_fairseq.records import figures, table
from collab_fairseq.records.files import write_text
from collab_fairseq.records.rows import load_run
from collab_fairseq.scoring.generate_log import read_generate_log

COLUMNS = (
    "heads",
    "key_dim",
    "parameters",
    "valid_loss",
    "compound_split",
    "sacrebleu",
    "words_per_second",
    "wall_time",
)
_EXAMPLES = 4


def examples(texts: Path, languages: Tuple[str, str], runs: Sequence[Path]) -> str:
    """Sentences of the test set, with the reference and every model's translation; such where the models differ."""
    shown = {
        side: (texts / f"test.{lang}").read_text(encoding="utf-8").split("\n")
        for side, lang in zip(("source", "reference"), languages, strict=True)
    }
    shown.update({run.name: read_generate_log([run / "test.generate.log"]).hypotheses for run in runs})
    names, numbers = [run.name for run in runs], range(len(shown[runs[0].name]))
    differing = [i for i in numbers if len({shown[name][i] for name in names}) > 1] or list(numbers)
    chosen = [differing[len(differing) * n // _EXAMPLES] for n in range(min(_EXAMPLES, len(differing)))]
    width = max(map(len, shown))
    return "\n\n".join("\n".join(f"    {name:<{width}}  {shown[name][i]}" for name in shown) for i in chosen)


def summarise(folder: Path, texts: Path, languages: Tuple[str, str], runs: List[Path]) -> None:
    """Print the results and write FOLDER/summary.md and FOLDER/validation.svg, unless they are there already.

    Args:
        texts: the folder of the raw test set. languages: of its source and its references. runs: folders of runs.
    """
    records = [load_run(run / "record.json") for run in runs]
    shown, compared = (
        table.markdown_table(records, columns=COLUMNS, folder=str(folder)),
        examples(texts, languages, runs),
    )
    text = f"{shown}\nTranslations of the test set:\n\n{compared}\n"
    page, drawing = folder / "summary.md", folder / "validation.svg"
    if not (page.is_file() and page.read_text(encoding="utf-8") == text and drawing.is_file()):
        figures.draw_losses(records, drawing, ("heads", "key_dim"))
        write_text(text, page)
    sys.stdout.write(f"\n{text}\nThis text: {page}\nFigure: {drawing}\n")
