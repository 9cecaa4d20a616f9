"""Columns of tables and axes of figures: names on the command line, headers and decimals."""

from typing import Any

#: a cell without a value
DASH = "–"

#: fields that rows can be grouped by, besides paths into records → header
GROUPING_FIELDS = {"heads": "heads", "key_dim": "key dimension", "updates": "updates", "averaged": "averaged"}
GROUP_BY = ("heads", "key_dim", "updates")
#: path into records → header
_PATHS = {"config.optimization.lr": "learning rate"}

#: numbers that are averaged over seeds → header, decimals
NUMBERS = {
    "parameters": ("parameters", 0),
    "cache": ("KV cache per token", 0),
    "valid_loss": ("validation loss", 3),
    "words_per_second": ("words/s", 0),
    "wall_time": ("training (h)", 2),
    "peak_memory": ("peak memory (GiB)", 2),
}
#: numbers that depend on the machine
MACHINE_DEPENDENT = ("words_per_second", "wall_time", "peak_memory")

#: scores of a test set → metric in the record; NLL is a loss in bits per token
METRICS = {
    "tokenised": "tokenised BLEU",
    "compound_split": "compound-split BLEU",
    "sacrebleu": "sacreBLEU",
    "chrf": "chrF",
    "chrf++": "chrF++",
    "ter": "TER",
    "comet": "COMET",
    "nll": "NLL",
}

#: columns shown by default, after those that rows are grouped by
COLUMNS = (
    *("seeds", "parameters", "cache", "valid_loss", "tokenised", "compound_split", "sacrebleu", "chrf"),
    *MACHINE_DEPENDENT,
)
#: columns shown on request only
ON_REQUEST = ("nll", "chrf++", "ter", "comet")


def header(field: str) -> str:
    """The header of a field that rows are grouped by."""
    return GROUPING_FIELDS.get(field) or _PATHS.get(field) or field.removeprefix("config.")


def described(field: str, value: Any) -> str:
    """A field and its value in words; the attention type needs no field name."""
    return str(value) if field == "heads" else f"{header(field)} {value}"
