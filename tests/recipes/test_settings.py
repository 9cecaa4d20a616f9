"""Wrong settings and command lines are rejected before any work: one sentence, exit status 2, no traceback."""

import logging
import shutil
import sys
from pathlib import Path

import pytest
from runner import cli, machine
from runner.evaluation import export
from runner.settings import RecipeError

from collab_fairseq.cli.main import guarded
from tests.common import ROOT, run

TOY = ROOT / "recipes" / "toy"
#: recipe → configurations next to its YAML
CONFIGS = {
    path.parent.name: [other.stem for other in sorted(path.parent.glob("*.yaml")) if other != path]
    for path in sorted((ROOT / "recipes").glob("*/*.yaml"))
    if path.parent.name == path.stem
}


@pytest.fixture
def call(capsys, monkeypatch):
    """Does what a script of a recipe does, in this process; its exit status, and what it printed on standard error."""
    monkeypatch.setattr(cli, "show_messages", lambda name: None)
    monkeypatch.setattr("os.environ", dict(machine.os.environ))
    logging.getLogger("recipe").setLevel(logging.WARNING)

    def call(script, *words):
        argv = [str(word) for word in words]
        status = guarded(script.parent.name, lambda: cli.main(script, argv))
        return status, capsys.readouterr().err

    return call


def rejected(done, message, status=2):
    """It ended with this status, and with one line, which has the message."""
    found, error = done
    assert found == status, error
    assert error.count("\n") == 1, error
    assert ": error: " in error
    assert message in error


WRONG = [
    ("recipe.average=0", "recipe.average must be at least 1; got 0"),
    ("model.dropout=7", "model.dropout must be in [0, 1); got 7"),
    ("model.dropout=nan", "model.dropout must be in [0, 1); got nan"),
    ("model.encoder.layerdrop=-1", "model.encoder.layerdrop must be in [0, 1); got -1"),
    ("criterion.label_smoothing=1", "criterion.label_smoothing must be in [0, 1); got 1"),
    ("optimization.lr=[]", "optimization.lr must have at least one value; got []"),
    ("optimization.lr=[-0.1]", "optimization.lr must be positive numbers; got -0.1"),
    ("optimization.lr=[.inf]", "optimization.lr must be positive numbers; got inf"),
    ("optimization.update_freq=[]", "optimization.update_freq must have at least one value; got []"),
    ("optimization.update_freq=[0]", "optimization.update_freq must be at least 1; got 0"),
    ("optimization.clip_norm=-1", "optimization.clip_norm must be at least 0; got -1"),
    ("recipe.batch_tokens=-3", "recipe.batch_tokens must be at least 1; got -3"),
    ("recipe.gpus=0", "recipe.gpus must be at least 1; got 0"),
    ("checkpoint.save_interval_updates=0", "checkpoint.save_interval_updates must be at least 1; got 0"),
    ("dataset.max_tokens=0", "dataset.max_tokens must be at least 1; got 0"),
    ("dataset.max_tokens=null", "dataset.max_tokens must be at least 1; got null"),
    ("dataset.validate_interval=0", "dataset.validate_interval must be at least 1; got 0"),
    ("optimization.max_update=0", "optimization.max_update must be at least 1; got 0"),
    ("generation.beam=0", "generation.beam must be at least 1; got 0"),
    ("model._name=banana", "model._name must be one of fairseq or this project; got "),
    ("model._name=banana", "; got banana"),
    ("model.encoder.layers=0", "model.encoder.layers must be at least 1; got 0"),
    ("model.encoder.attention_heads=3", "--encoder-attention-heads"),
    ("model.kv_heads=2", "--kv-heads 2 is for standard heads"),
    ("optimizer.adam_betas=banana", "expected a value such as 0.1 or [(512, 3)] * 20, got 'banana'"),
    ("lr_scheduler.warmup_updates=0", "lr_scheduler must be settings that fairseq can build; got ZeroDivisionError"),
    ("lr_scheduler._name=nosuch", "lr_scheduler._name must be one of fairseq or this project; got "),
    ("model.dropout=???", "model.dropout must be given; got ???"),
    ("model.dropout=${nothere.x}", "model.dropout must have a value: Interpolation key 'nothere.x' not found"),
    ("model=hello", "expected a setting such as optimization.lr=[0.001], got 'model=hello'"),
]


@pytest.mark.parametrize(("word", "message"), WRONG)
def test_wrong_settings_are_rejected_before_any_work(word, message, call, tmp_path):
    output = ["--output", tmp_path / "run", "--device", "cpu"]
    rejected(call(TOY / "run.sh", word, *output, "--dry-run"), message)
    rejected(call(TOY / "run.sh", word, *output), message)
    rejected(call(TOY / "sweep.sh", word, "--output", tmp_path / "runs", "--dry-run"), message)
    rejected(call(ROOT / "recipes" / "wmt14_en_de" / "train.sh", word, *output, "--dry-run"), message)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        "model.compile=true",
        "model.head_gates=encoder criterion._name=label_smoothed_cross_entropy_with_gates",
        "model._name=transformer_collab model.activation_fn=gelu model.checkpoint_activations=true",
        "model.encoder.layerdrop=0.1 model.quant_noise.pq=0.1 model.share_all_embeddings=false",
        "model.collaborative_heads=none model.key_dim=null model.kv_heads=2 model.mask_heads=E:1:1",
        "lr_scheduler._name=cosine optimizer._name=adam optimization.lr=[0.1] dataset.batch_size=7",
        "common.amp=true common.seed=0 optimization.clip_norm=0.5 recipe.stages=2 recipe.average=1",
        "model.attention_from=nosuch.pt model.dropout=${criterion.label_smoothing} model.attention_dropout=0",
    ],
)
def test_settings_that_fairseq_can_train_with_are_accepted(words, call, tmp_path):
    done = call(TOY / "run.sh", *words.split(), "--output", tmp_path / "run", "--device", "cpu", "--dry-run")
    assert done == (0, "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--runs", "foo:16"], "--heads must be sites among encoder, cross, decoder joined by '_'"),
        (["--runs", "none:0"], "--runs must be HEADS:KEY_DIM[:VARIANT] with a positive KEY_DIM; got 'none:0'"),
        (["--runs", ""], "--runs must name at least one run, such as none:64; got ''"),
        (["--runs", "none:16:nosuch"], "--variant must be a variant of this recipe (blocks8)"),
        (["--runs", "none:10"], "--key-dim"),
        (["--average", "99"], "--average 99: there are fewer checkpoints"),
        (["--seeds", "0"], "argument --seeds: must be a positive integer; got '0'"),
        (["--submit", "sbatch 'x"], "--submit must be words as in a shell; got sbatch 'x (No closing quotation)"),
        (["--submit", ""], "--submit must begin with a program that is installed; got ''"),
    ],
)
def test_wrong_sweeps_are_rejected_before_any_work(words, message, call, tmp_path):
    rejected(call(TOY / "sweep.sh", *words, "--output", tmp_path / "runs", "--dry-run"), message)
    rejected(call(TOY / "sweep.sh", *words, "--output", tmp_path / "runs"), message)
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_is_submitted_by_a_program_that_is_installed(call, tmp_path):
    words = ["--submit", "nosuchprogram -x", "--output", tmp_path / "runs"]
    message = "--submit must begin with a program that is installed; got 'nosuchprogram -x'"
    rejected(call(TOY / "sweep.sh", *words), message)
    assert call(TOY / "sweep.sh", *words, "--dry-run") == (0, "")  # of another machine


def test_a_table_needs_a_finished_run(call, tmp_path):
    output = tmp_path / "runs"
    message = f"none of these runs is finished in {output}: there is nothing for a table"
    rejected(call(TOY / "sweep.sh", "--table", "--output", output), message, status=1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: null", "model in FILE must be a section of settings; got null"),
        ("model: hello", "model in FILE must be a section of settings; got hello"),
        ("checkpoint: 3", "checkpoint in FILE must be a section of settings; got 3"),
        ("defaults: [FILE]", "defaults must name other files; got FILE.yaml in a circle"),
        ("defaults: [3]", "defaults in FILE must be a list of names of YAML files; got [3]"),
        ("defaults: 3", "defaults in FILE must be a list of names of YAML files; got 3"),
        ("defaults: [nosuch]", "there is no file FOLDER/nosuch.yaml"),
        ("model: {dropout: '${nothere.x}'}", "model.dropout must have a value: Interpolation key 'nothere.x'"),
        ("model: {dropout: '${model.dropout}'}", "model.dropout must have a value: Recursive interpolation"),
        ("model: {dropout: '${oc.env:NOPE}'}", "model.dropout must have a value: KeyError raised while"),
        ("model: {dropout: '${'}", "model.dropout"),
        ("model: {dropout: '???'}", "model.dropout must be given; got ???"),
        ("recipe: {variants: null}", "recipe.variants: "),
        ('recipe: {variants: {a: "model.dropout=\'0.1"}}', "recipe.variants.a must be words as in a shell"),
        ("checkpoint: {save_interval_updates: 0}", "checkpoint.save_interval_updates must be at least 1; got 0"),
        ("checkpoint: {save_interval_updates: x}", "checkpoint.save_interval_updates: Value 'x'"),
        ("optimization: {max_update: null}", "optimization.max_update: "),
        ("banana: {a: 1}", "banana is not a section of settings"),
        ("[", "FILE is no YAML of settings: "),
        ("3", "FILE"),
    ],
)
def test_wrong_files_of_settings_are_rejected(text, message, call, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(text.replace("FILE", "mine"))
    message = message.replace("FILE.yaml", str(file)).replace("FILE", str(file)).replace("FOLDER", str(tmp_path))
    variant = ["--variant", "a"] if "variants: {a" in text else []
    rejected(call(TOY / "run.sh", "--config", file, *variant, "--device", "cpu", "--dry-run"), message)


def test_a_file_of_settings_must_be_one(call, tmp_path):
    for file, message in ((tmp_path / "nosuch", f"there is no file {tmp_path / 'nosuch'}"), (tmp_path, "Is a dir")):
        rejected(call(TOY / "run.sh", "--config", file, "--dry-run"), message)


@pytest.mark.parametrize("script", ["run.sh", "sweep.sh"])
def test_results_need_a_folder_that_can_be_written_to(script, call, tmp_path):
    file = tmp_path / "file"
    file.touch()
    for output in (file, file / "run", Path("/proc/nosuch")):
        done = call(TOY / script, "--output", output, "--device", "cpu")
        rejected(done, f"--output must be a folder that can be written to; got {output} (", status=1)


def test_the_shell_scripts_pass_the_exit_status_on(tmp_path):
    done = run("bash", TOY / "run.sh", "model.dropout=7", "--dry-run", check=False)
    rejected((done.returncode, done.stderr), "recipes/toy/run.sh: error: model.dropout must be in [0, 1); got 7")
    done = run("bash", TOY / "run.sh", "--python", "nosuch", check=False)
    rejected((done.returncode, done.stderr), "no Python 'nosuch'")
    texts = [tmp_path / "a.en", tmp_path / "a.de"]
    for text in texts:
        text.write_text("".join(f"{n}\n" for n in range(700)))
    own = ["bash", ROOT / "recipes" / "own" / "run.sh", "--source", *texts, "--output", tmp_path / "out"]
    done = run(*own, "model.dropout=7", "--python", sys.executable, check=False)
    rejected((done.returncode, done.stderr), "model.dropout must be in [0, 1); got 7")
    assert not (tmp_path / "out").exists()
    own[-1] = texts[0]
    done = run(*own, "--python", sys.executable, check=False)
    rejected((done.returncode, done.stderr), f"--output must be a folder that can be written to; got {texts[0]}", 1)


@pytest.mark.parametrize("recipe", CONFIGS)
def test_every_recipe_is_valid_with_its_configurations_variants_and_runs(recipe, call):
    script = ROOT / "recipes" / recipe / "run.sh"
    given = ["--device", "cpu", "--dry-run"]
    if recipe == "own":
        given += ["task.source_lang=en", "task.target_lang=de"]
    cli.read_run(script, [*given, "--config", str(script.with_name(f"{recipe}.yaml"))])  # as a copy that was edited
    seen = {}
    for config in ("", *CONFIGS[recipe]):
        chosen = [*given, *(["--config", config] if config else [])]
        cfg, _ = cli.read_run(script, chosen)
        if cfg.recipe.stock:
            cli.read_run(script, [*chosen, "--stock"])
        for name, text in cfg.recipe.variants.items():
            if seen.get(name) != text:
                heads = "none" if text.startswith("model.kv_") else "encoder_cross_decoder"
                cli.read_run(script, [*chosen, "--heads", heads, "--key-dim", "64", "--variant", name])
                seen[name] = text
        if cfg.recipe.runs:
            status, error = call(script.with_name("sweep.sh"), "--dry-run", *chosen)
            assert (status, error) == (0, "")


@pytest.mark.parametrize("name", ["model.pt", "dict.de.txt", "translation.json", "README.md", "record.json"])
def test_a_model_folder_that_lacks_a_file_is_not_taken_for_finished(name, tmp_path):
    model = shutil.copytree(ROOT / "results" / "models" / "curve-collaborative-64", tmp_path / "model")
    export(tmp_path, tmp_path, model)  # the control: nothing is missing
    (model / name).unlink()
    with pytest.raises(RecipeError, match=f"{name}.*; to make the folder again, run: rm -r {model} and then the same"):
        export(tmp_path, tmp_path, model)
