"""Columns of tables and axes of figures, by the names that flags have for them."""

#: a cell without a value
DASH = "–"

#: headers of what rows can be grouped by
KEYS = {"heads": "heads", "key_dim": "key dim", "updates": "updates", "averaged": "averaged"}
GROUP_BY = ("heads", "key_dim", "updates")

#: header and decimals of numbers that are averaged over seeds
NUMBERS = {
    "parameters": ("parameters", 0), "cache": ("cached numbers", 0), "valid_loss": ("validation loss", 3),
    "words_per_second": ("words/s", 0), "wall_time": ("training (h)", 2), "peak_memory": ("peak memory (GiB)", 2),
}  # fmt: skip
#: those that depend on the machine
MACHINES = ("words_per_second", "wall_time", "peak_memory")

#: scores of a test set: name of the column → metric in the record; the last is a loss, in bits per token
METRICS = {
    "tokenised": "tokenised BLEU", "compound_split": "compound-split BLEU", "sacrebleu": "sacreBLEU", "chrf": "chrF",
    "chrf++": "chrF++", "ter": "TER", "comet": "COMET", "nll": "nll",
}  # fmt: skip

#: the columns after those that the rows are grouped by
COLUMNS = (
    "seeds", "parameters", "cache", "valid_loss", "tokenised", "compound_split", "sacrebleu", "chrf", *MACHINES
)  # fmt: skip
#: columns that are shown on request only
ON_REQUEST = ("nll", "chrf++", "ter", "comet")
