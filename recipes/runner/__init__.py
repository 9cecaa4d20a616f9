"""One runner for all recipes: prepare, train, average, translate, score, record.

`recipes/<name>/run.sh` and its like are entries of three lines: they source start.sh, which finds the Python in use and
hands their arguments to recipes/run.py. A script is a step of a recipe by its name (run, train, average, evaluate,
sweep), its folder the recipe, whose settings are `<name>.yaml`; one with a program of its own name beside it
(wmt14_en_de/rehearse.sh, rehearse.py) has that one run instead, with this package within reach:

    settings     YAML and what is laid over it: `load("multi30k", "table")`, `lay_over(cfg, ["model.dropout=0.1"])`,
                 `check(cfg)`; fairseq's flags: `flags(cfg, "model", "optimizer")`; `ROOT`, `PYTHON`, `RecipeError` (one
                 sentence, no traceback)
    machine      `choose_device(name, cards().number)`; `Machine`: precision, batch on any number of cards, launching
    folder       a folder holds one run: `keep_settings(folder, {…})`, and a step whose file is there is finished;
                 `attend(command, log)` runs a process that signals are handed on to, and ends with status 75
                 (`STOPPED`) where it was stopped as asked
    training     `Run`; `collab("average", …)`: what `collab` does, in this process; `tool("fairseq-train")`
    evaluation   `evaluate(run)`: translations, scores, record, model folder
    sweep        several runs and their table; `run_name`
    cli          `main(script, arguments)`: a step of a recipe; `Parser`, whose errors are one sentence;
                 `show_messages(name)`

A program of its own parses its options with `cli.Parser` and ends with `collab_fairseq.cli.main.guarded(NAME, main)`.
"""
