"""The runner of all recipes: prepare, train, average, translate, score, record.

`python -m recipes NAME [STEP]` and recipes/NAME/run.sh call `cli.main`, unless the folder of the recipe has a program:
STEP.py (wmt14_en_de/rehearse.py) or run.py (heads). NAME.yaml has the settings.

In the order of a run:

    options      flags: other names of settings
    settings     YAML file of a recipe, overrides, flags of fairseq; `ROOT`, `PYTHON`
    checks       names and types of settings; whether fairseq can build the model; averages, test sets
    machine      device, precision, division of the batch among processes
    launch       child processes: commands, signals, exit statuses, GPUs; usage: their time and memory
    recipe_run   `RecipeRun`: folder, stages, averages
    folder       settings kept in the folder of a run, and its lock
    data         preparation and checksums
    nodes        connections between the nodes of a run, and their comparison before they train
    training     fairseq-train, in stages
    averaging    averages of checkpoints
    evaluation   translations, scores, record, model folder
    sweep        several runs and their table
    cli          `main`: these steps in order

For programs of recipes: `finetune` (options and training of a given model), `launch.run_logged` (a child process that
gets all signals), `programs` (`collab` and fairseq's tools), `progress` and `summary`. They parse options with
`argparse` in `main`, or in `markdown`, whose result is printed and may be the table of a page.
"""
