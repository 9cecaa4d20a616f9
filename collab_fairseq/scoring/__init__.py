"""From the log of fairseq-generate to BLEU: tokenised, compound-split and sacreBLEU."""
