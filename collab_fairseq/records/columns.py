"""What tables and figures can show, by the names that flags have for it."""

#: what a table shows where there is nothing
DASH = "–"

#: headers of what rows can be grouped by
KEYS = {"heads": "heads", "key_dim": "key dim", "updates": "updates", "averaged": "averaged"}
GROUP_BY = ("heads", "key_dim", "updates")

#: header and decimals of what is averaged over the seeds
NUMBERS = {
    "parameters": ("parameters", 0), "cache": ("cached numbers", 0), "valid_loss": ("validation loss", 3),
    "words_per_second": ("words/s", 0), "wall_time": ("training (h)", 2), "peak_memory": ("peak memory (GiB)", 2),
}  # fmt: skip
#: those that belong to a machine
MACHINES = ("words_per_second", "wall_time", "peak_memory")

#: scores of a test set: name of the column → metric in the record; the last is a loss, in bits a token
METRICS = {
    "tokenised": "tokenised BLEU", "compound_split": "compound-split BLEU", "sacrebleu": "sacreBLEU", "chrf": "chrF",
    "chrf++": "chrF++", "ter": "TER", "comet": "COMET", "nll": "nll",
}  # fmt: skip

#: all columns besides those that the rows are grouped by, which stand before them
COLUMNS = (
    "seeds", "parameters", "cache", "valid_loss", "tokenised", "compound_split", "sacrebleu", "chrf", *MACHINES
)  # fmt: skip
#: and those that are shown where they are asked for
ON_REQUEST = ("nll", "chrf++", "ter", "comet")
