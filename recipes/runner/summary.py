"""Summary of runs, made from their records: a table, a figure and some translations side by side."""

import sys
from pathlib import Path
from typing import Dict, List, Sequence, Tuple

from collab_fairseq.files import write_text
from collab_fairseq.records import drawing, figures, table
from collab_fairseq.records.rows import load_run
from collab_fairseq.scoring.generate_log import read_translations
from collab_fairseq.scoring.references import read_lines

COLUMNS = (
    *("heads", "key_dim", "parameters", "valid_loss", "compound_split", "sacrebleu"),
    *("words_per_second", "wall_time"),
)
EXAMPLES = 4


def check_packages() -> None:
    """Raise UserError unless the packages for tables and figures are installed, which recipes need after training."""
    drawing.check_packages("tables and figures", "matplotlib", "pandas", "scipy")


def examples(texts: Path, languages: Tuple[str, str], runs: Sequence[Path]) -> str:
    """Some test sentences with the reference and the translation of each run, if possible where these differ."""
    versions: Dict[str, List[str]] = {}
    for side, language in zip(("source", "reference"), languages, strict=True):
        versions[side] = read_lines(texts / f"test.{language}")
    translations = {run.name: read_translations([run / "test.generate.log"]).hypotheses for run in runs}
    versions.update(translations)
    sentences = list(zip(*translations.values(), strict=True))
    differing = [number for number, sentence in enumerate(sentences) if len(set(sentence)) > 1]
    candidates = differing or list(range(len(sentences)))
    count = min(EXAMPLES, len(candidates))
    width = max(map(len, versions))
    blocks = []
    for number in [candidates[len(candidates) * n // count] for n in range(count)]:
        lines = [f"    {name:<{width}}  {version[number]}" for name, version in versions.items()]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def summarise(folder: Path, texts: Path, languages: Tuple[str, str], runs: List[Path]) -> None:
    """Print the results of runs (their folders). Writes summary.md and validation.svg unless they are up to date.

    Args:
        texts: folder of the raw test set.
        languages: source and target language.
    """
    records = [load_run(run / "record.json") for run in runs]
    results = table.markdown_table(records, columns=COLUMNS, folder=str(folder))
    text = f"{results}\nTranslations of the test set:\n\n{examples(texts, languages, runs)}\n"
    page, figure = folder / "summary.md", folder / "validation.svg"
    up_to_date = page.is_file() and page.read_text(encoding="utf-8") == text and figure.is_file()
    if not up_to_date:
        figures.draw_losses(records, figure, ("heads", "key_dim"))
        write_text(text, page)
    sys.stdout.write(f"\n{text}\nThis text: {page}\nFigure: {figure}\n")
