"""A small grammar of English and German side by side, for `data_prep/toy.py`.

`words` holds the tables, `inflection` the forms of words; `noun_phrases` and `clauses` put them in order; `phrases` and
`sentences` make the choices by chance.
"""
