"""Preparation of data sets: corpus → data-bin for fairseq, with checksums. `python -m data_prep NAME` or NAME.sh.

interpreter        $PYTHON: the Python interpreter of this program and of those that it starts
data_set           fields of NAME.yaml, options of `python -m data_prep NAME`
prepare            the steps of a preparation
archives, unpack   download, verify and unpack the archives of NAME.tsv
pieces             SentencePiece
folders            output folders: locks, checksums
own, toy           corpora that a program writes; toy_grammar has the sentences
miniature          small archives like those of a public data set, for rehearsals and tests
micro_wmt_corpus   builds the corpus of micro_wmt from its sources
"""
