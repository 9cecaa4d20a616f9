"""One runner for all recipes: prepare, train, average, translate, score, record.

`recipes/<name>/run.sh` and its like are entries of three lines: they source start.sh, which finds the Python in use and
hands their arguments to recipes/run.py. A script is a step of a recipe by its name (run, train, average, evaluate,
sweep), its folder the recipe, whose settings are `<name>.yaml`; one with a program of the same name next to it
(wmt14_en_de/rehearse.sh, rehearse.py) has that one run instead, with this package within reach:

    settings     YAML and overrides: `load("multi30k", "table")`, `overrides(cfg, ["model.dropout=0.1"])`, `check(cfg)`;
                 fairseq's flags: `flags(cfg, "model", "optimizer")`; `ROOT`, `PYTHON`, `RecipeError` (one sentence, no
                 traceback, exit status 1), `SettingsError` (the same for wrong settings and command lines, 2)
    validation   `validate(cfg)`: ranges, and whether fairseq can build task, model, criterion, optimizer, scheduler
    machine      `choose_device(name, cards().number)`; `Machine`: precision, batch on any number of GPUs, launching
    process      `run_logged(command, log)` runs a process that signals are forwarded to and that dies with the runner;
                 it ends with status 75 (`STOPPED`) if the process was asked to stop
    folder       a folder holds one run: `locked(folder)`, `keep_settings(folder, {…})`
    training     `RecipeRun`: what is finished and what comes next
    programs     `collab("score", …)`: what `collab` does, in this process; `tool("fairseq-train")`
    evaluation   `evaluate(run)`: translations, scores, record, model folder
    sweep        several runs and their table; `run_name`
    options      the options of a step; `Parser`, whose errors are one sentence
    cli          `main(script, arguments)`: a step of a recipe; `show_messages(name)`

A program with its own name parses its options with `options.Parser` and ends with
`collab_fairseq.cli.main.guarded(NAME, main)`.
"""
