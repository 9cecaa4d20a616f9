"""Wrong settings and command lines are rejected before any work: one line, exit status 2, no traceback."""

import functools
import hashlib
import importlib
import json
import logging
import os
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from fairseq.dataclass.configs import CommonEvalConfig
from omegaconf import OmegaConf

from collab_fairseq.cli.main import guarded
from fairseq_modern.errors import UserError
from recipes.runner import checks, cli, machine, settings, sweep
from recipes.runner.evaluation import export
from recipes.runner.folder import keep_settings
from tests.common import ROOT, program, rejected, run

RECIPES = ROOT / "recipes"
SCRIPTS = sorted([*RECIPES.glob("*/*.sh"), *(ROOT / "data_prep").glob("*.sh")])
#: reads each YAML file once
LOAD = functools.cache(settings.load)
#: recipe → other YAML files in its folder
CONFIGS = {
    path.parent.name: [other.stem for other in sorted(path.parent.glob("*.yaml")) if other != path]
    for path in sorted(RECIPES.glob("*/*.yaml"))
    if path.parent.name == path.stem
}


@pytest.fixture
def call(capsys, monkeypatch):
    """Run a recipe in this process."""
    monkeypatch.setattr(cli, "show_messages", lambda name: None)
    monkeypatch.setattr(settings, "load", LOAD)
    monkeypatch.setattr("os.environ", dict(os.environ))
    monkeypatch.setattr(logging.getLogger("recipe"), "level", logging.WARNING)

    def call(recipe, *words):
        argv = [str(word) for word in words]
        status = guarded(recipe, lambda: cli.main(recipe, argv))
        return subprocess.CompletedProcess(argv, status, *capsys.readouterr())

    return call


def assert_rejected(done, message):
    """The script failed and printed nothing but an error with this message."""
    rejected(done, ": error: ", message)
    assert done.stderr.count("\n") == 1


def assert_accepted(done):
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("word", "message"),
    [
        # names and types: errors of OmegaConf
        ("model.encoder.layer=3", "Key 'layer' not in 'EncDecBaseConfig' full_key: model.encoder.layer"),
        ("recipe.averag=3", "Key 'averag' not in 'Recipe' full_key: recipe.averag"),
        ("optimization.clip_norm=high", "Value 'high' of type 'str' could not be converted to Float full_key: optimiz"),
        ("optimization.lr=[1", "while parsing a flow sequence"),
        ("model.dropout=${nothere.x}", "Interpolation key 'nothere.x' not found full_key: model.dropout"),
        # sections that would not reach fairseq-train
        ("ema.store_ema=true", "settings must be in the sections common, task, model"),
        ("optimizer._name=fuse_adam", "optimizer._name must be registered by fairseq or this project; got fuse_adam"),
        # what a run would only show at its end, or not at all
        ("recipe.average=0", "recipe.average must be at least 1; got 0"),
        ("dataset.max_tokens=null", "dataset.max_tokens must be at least 1; got None"),
        ("optimization.update_freq=[4,1]", "optimization.update_freq must be one number in a recipe; got [4, 1]"),
        ("common.log_format=simple", "common.log_format must be json, which a recipe reads; got simple"),
        ("checkpoint.keep_interval_updates=1", "--average must be at most 1, the number of checkpoints kept; got 5"),
        ("lr_scheduler.warmup_updates=0", "fairseq cannot build this model: "),
        ("model.kv_heads=2", "--kv-heads is for grouped heads"),
        # reserved
        ("checkpoint.patience=5", "checkpoint.patience must be left out: the recipe sets it, or could not resume, av"),
        ("checkpoint.no_save_optimizer_state=true", "checkpoint.no_save_optimizer_state must be left out"),
        ("common.amp=true", "common.amp must be left out"),
        ("optimization.stop_min_lr=1e-8", "optimization.stop_min_lr must be left out"),
        ("common.user_dir=/x", "common.user_dir must be left out"),
        ("checkpoint.save_dir=/x", "checkpoint.save_dir must be left out"),
    ],
)
def test_rejects_wrong_settings_before_any_work(word, message, call, tmp_path):
    assert_rejected(call("toy", word, "--output", tmp_path / "run", "--device", "cpu"), message)
    assert list(tmp_path.iterdir()) == []


def test_rejects_wrong_settings_of_dry_runs_and_sweeps(call, tmp_path):
    word, output = "recipe.average=0", ["--output", tmp_path / "run"]
    for words in (["--device", "cpu", "--dry-run"], ["sweep"], ["sweep", "--dry-run"]):
        assert_rejected(call("toy", *words, word, *output), "recipe.average must be at least 1; got 0")
    assert list(tmp_path.iterdir()) == []


def test_a_request_for_gpus_is_rejected_without_gpus(call, tmp_path, monkeypatch):
    """Independent of how it is made; the recipe's own number of GPUs is no request."""
    monkeypatch.setattr(machine, "find_gpus", lambda: machine.Gpus(0))
    (tmp_path / "mine.yaml").write_text("recipe: {gpus: 2}")
    output = ["--output", tmp_path / "runs"]
    for request in (["--gpus", 2], ["recipe.gpus=2"], ["--config", tmp_path / "mine.yaml"]):
        for recipe in (["toy"], ["toy", "sweep", "--jobs", 2]):
            assert_rejected(call(*recipe, *output, *request), "--gpus 2: torch sees no GPU here")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]
    for words in (["--gpus", 2, "--device", "cpu", "recipe.batch_tokens=4096"], []):
        assert_accepted(call("toy", *output, *words, "--dry-run"))
    done = call("wmt14_en_de", "average", *output, "--gpus", 2)
    assert_rejected(done, "there is no run in")  # needs no GPU


def test_the_model_and_the_output_of_translations_are_those_of_the_recipe(call):
    """All settings of fairseq-generate's files, whatever there are."""
    values = {field.name: "true" if field.default is False else "x" for field in fields(CommonEvalConfig)}
    assert {"path", "quiet", "results_path"} < values.keys()
    for name in values.keys() - {"_name", "post_process"}:
        done = call("toy", f"common_eval.{name}={values[name]}", "--device", "cpu", "--dry-run")
        assert_rejected(done, f"common_eval.{name} must be left out")
    assert_accepted(call("toy", "common_eval.quiet=false", "--device", "cpu", "--dry-run"))  # the default


@pytest.mark.parametrize(
    "words",
    [
        "optimization.stop_min_lr=-1",
        "model.compile=true",
        "model.head_gates=encoder criterion._name=label_smoothed_cross_entropy_with_gates",
        "model._name=transformer_collab model.activation_fn=gelu model.checkpoint_activations=true",
        "model.encoder.layerdrop=0.1 model.quant_noise.pq=0.1 model.share_all_embeddings=false",
        "model.collaborative_heads=none model.key_dim=null model.kv_heads=2 model.mask_heads=E:1:1",
        "lr_scheduler._name=cosine optimizer._name=adam optimization.lr=[0.1] dataset.batch_size=7",
        "common.seed=0 optimization.clip_norm=0.5 recipe.stages=2 recipe.average=1",
        "model.attention_from=nosuch.pt model.dropout=${criterion.label_smoothing} model.attention_dropout=0",
    ],
)
def test_accepts_settings_that_fairseq_can_train_with(words, call, tmp_path):
    flags = ["--output", tmp_path / "run", "--device", "cpu", "--dry-run"]
    assert_accepted(call("toy", *words.split(), *flags))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--runs", "foo:16"], "--collaborative-heads must be different sites among encoder, cross, decoder joined by"),
        (["--runs", "none:0"], "--runs must be HEADS:KEY_DIM[:VARIANT] with a positive KEY_DIM; got 'none:0'"),
        (["--runs", ""], "--runs must name at least one run, such as none:64; got ''"),
        (["--runs", "none:16:nosuch"], "--variant must be of this recipe (blocks8)"),
        (["model.key_dim=8"], "give --runs or --seeds"),
        (["recipe.variant=blocks8"], "recipe.variant is no setting of a sweep"),
        (["recipe.valid=true"], "recipe.valid is no setting of a sweep"),
        (["--average", "99"], "--average must be at most 20"),
        (["--submit", ""], "--submit must begin with a program that is installed; got ''"),
    ],
)
def test_rejects_wrong_sweeps_before_any_work(words, message, call, tmp_path):
    assert_rejected(call("toy", "sweep", *words, "--output", tmp_path / "runs"), message)
    assert list(tmp_path.iterdir()) == []


def test_a_setting_of_a_sweep_equals_its_flag(call, tmp_path):
    """In a run, recipe.output would win over the folder of the run."""
    words = ["toy", "sweep", "--runs", "none:16 none:64", "--device", "cpu", "--dry-run"]
    assert call(*words, f"recipe.output={tmp_path}").stdout == call(*words, "--output", tmp_path).stdout != ""


def test_standard_heads_have_the_full_key_dimension_unless_it_is_set():
    for words in (["--heads", "none"], ["model.collaborative_heads=none"]):
        assert cli.read("multi30k", "all", words)[0].model.key_dim is None
        assert cli.read("multi30k", "all", [*words, "model.key_dim=64"])[0].model.key_dim == 64


def test_a_schedule_of_the_whole_run_has_no_stages():
    cfg = settings.load("toy", "")
    cfg.recipe.stages = 2
    checks.check_averages(cfg)
    for name in ("cosine", "tri_stage"):
        cfg.lr_scheduler._name = name
        with pytest.raises(UserError, match="--stages must be 1 with a schedule of the whole run"):
            checks.check_averages(cfg)


def test_a_file_of_references_is_for_one_test_set(call):
    words = ["--reference", __file__, "--device", "cpu", "--dry-run"]
    for recipe, valid, sets in (
        ("multi30k", [], "test_2016_flickr, test_2017_flickr"),
        ("micro_wmt", ["--valid"], "tatoeba_valid, newstest2013"),
    ):
        done = call(recipe, *words, *valid)
        assert_rejected(done, f"must be the references of one test set; got {__file__} for {sets}")
    assert_accepted(call("micro_wmt", *words))  # control: one test set


@pytest.mark.parametrize("package", ["matplotlib", "pandas", "scipy"])
def test_tables_and_figures_need_packages_before_any_work(package, call, tmp_path, monkeypatch):
    source = [tmp_path / "mine.en", tmp_path / "mine.de"]
    for file in source:
        file.write_text("x\n" * 600)
    own, demo = (importlib.import_module(f"recipes.{name}.run") for name in ("own", "demo"))
    words = ["--device", "cpu", "--output", tmp_path / "out"]
    monkeypatch.setattr(demo, "show_messages", lambda name: None)
    for module, work in ((sweep, "make"), (own.prepare, "prepare"), (demo, "make_corpus")):
        monkeypatch.setattr(module, work, lambda *_: pytest.fail("work has begun"))
    monkeypatch.setitem(sys.modules, package, None)
    message = f"need {package}: install this project with its extra `plots`"
    assert_rejected(call("toy", "sweep", *words), message)
    for main, argv in ((own.main, ["--source", *source]), (own.main, ["sweep", "--source", *source]), (demo.main, [])):
        monkeypatch.setattr("sys.argv", ["run.sh", *map(str, [*argv, *words])])
        with pytest.raises(UserError, match=message):
            main()
    assert not (tmp_path / "out").exists()
    assert_accepted(call("toy", *words, "--dry-run"))  # control: a single run has no table


def test_submit_needs_an_installed_program_except_in_a_dry_run(call, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    words = ["--submit", "nosuchprogram -x", "--output", tmp_path / "runs"]
    assert_rejected(call("toy", "sweep", *words), "a program that is installed; got 'nosuchprogram -x'")
    assert_accepted(call("toy", "sweep", *words, "--dry-run"))
    monkeypatch.chdir(tmp_path)  # where run.sbatch would not find the recipe
    assert_rejected(call("toy", "sweep", *words, "--dry-run"), f"--submit must be given in {ROOT}; got {tmp_path}")


@pytest.mark.parametrize("option", ["--output", "--data"])
def test_rejects_paths_that_fairseq_would_split(option, call):
    words = ["--device", "cpu", "--dry-run", option]
    assert_rejected(call("toy", *words, "/x/12:30"), f"{option} must be a path without ':', where fairseq ")
    assert_accepted(call("toy", *words, "/x/12.30"))


def test_a_node_needs_the_number_of_nodes(call, tmp_path):
    words = ["--output", tmp_path / "run", "--device", "cpu", "--node-rank", 1]
    assert_rejected(call("toy", *words), "--node-rank must be below --nodes, 1; got 1")
    words += ["--master", "localhost:29500", "--dry-run", "recipe.batch_tokens=4000"]
    assert_accepted(call("toy", *words, "--nodes", 2))


def test_steps_need_the_results_of_earlier_steps(call, tmp_path):
    done = call("toy", "sweep", "--table", "--output", tmp_path)
    assert_rejected(done, f"none of these runs is finished in {tmp_path}")
    done = call("wmt14_en_de", "average", "--output", tmp_path, "--device", "cpu")
    assert_rejected(done, f"there is no run in {tmp_path}; the step train makes it")


def test_sweep_rejects_finished_runs_of_other_settings_or_data(call, caplog, tmp_path, monkeypatch):
    runs, data = tmp_path / "runs", tmp_path / "data"
    folder = runs / "none-dk16-s2-u1500"
    words = ["--runs", "none:16", "--seeds", 2, "--output", runs, "--data", data, "--device", "cpu"]
    cfg, _ = cli.read_run("toy", "all", ["--heads", "none", "--key-dim", "16", "--seed", "2", "model.dropout=0.3"])
    keep_settings(folder, {"name": "toy-none-dk16-s2-u1500", "data": 1, **settings.identity(cfg)})
    shutil.copy(ROOT / "results" / "runs" / "toy-encoder_cross_decoder-dk16-s1-u1500.json", folder / "record.json")
    dropout = OmegaConf.select(cli.read_run("toy", "all", [])[0], "model.dropout")
    monkeypatch.chdir(ROOT)  # for --submit
    for mode in ([], ["--table"], ["--dry-run"], ["--submit", "true"]):
        done = call("toy", "sweep", *words, *mode)
        message = f"{folder} has a run with different settings: model.dropout 0.3 (requested: {dropout}); use its"
        assert_rejected(done, message)
        # control: the settings of the run; its data are not on this machine
        assert_accepted(call("toy", "sweep", *words, *mode, "model.dropout=0.3"))
    data.mkdir()
    (data / "SHA256SUMS").write_text(f"{64 * '0'}  x\n")
    done = call("toy", "sweep", *words, "model.dropout=0.3")
    assert_rejected(done, f"{folder} has a run with different settings: data 1 (requested: ")
    (folder / "settings.yaml").unlink()  # as if only the record had been copied
    assert_accepted(call("toy", "sweep", *words, "--table"))
    assert f"{folder} has no settings.yaml: its settings are not checked" in caplog.text


def test_sweep_rejects_finished_runs_with_other_references_or_test_sets(call, tmp_path):
    """As a single run does. The reference is the checksum of the text."""
    same, other = tmp_path / "same.de", tmp_path / "other.de"
    same.write_text("Eins.\n")
    other.write_text("Zwei.\n")
    record = json.loads((ROOT / "results" / "runs" / "toy-encoder_cross_decoder-dk16-s1-u1500.json").read_text())
    record["parts"]["scores"]["test"]["files"][-1]["sha256"] = hashlib.sha256(b"Eins.\n").hexdigest()
    file = tmp_path / "runs" / "none-dk16-s1-u1500" / "record.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(record))
    words = ["--runs", "none:16", "--output", tmp_path / "runs", "--data", tmp_path / "data", "--device", "cpu"]
    for mode in ([], ["--table"]):
        done = call("toy", "sweep", *words, *mode, "--reference", other)
        assert_rejected(done, f"the references of test must be those of {file}: test.de, SHA-256 ")
        done = call("toy", "sweep", *words, *mode, "recipe.tests={valid: valid}")
        assert_rejected(done, f"{file} has scores of test; move it away to record other test sets")
        # control: the references of the record; without --reference, they are not on this machine
        for reference in ([], ["--reference", same]):
            assert_accepted(call("toy", "sweep", *words, *mode, *reference))
    (tmp_path / "data" / "raw").mkdir(parents=True)
    other.rename(tmp_path / "data" / "raw" / "test.de")
    assert_rejected(call("toy", "sweep", *words), f"the references of test must be those of {file}: ")
    del record["parts"]["scores"]["test"]  # of a run without test sets
    file.write_text(json.dumps(record))
    assert " --heads none --key-dim 16 " in call("toy", "sweep", *words, "--dry-run").stdout
    assert call("toy", "sweep", *words, "--dry-run", "recipe.tests=null").stdout == ""


def test_sweep_translates_again_with_other_settings_of_decoding(call, tmp_path):
    record = json.loads((ROOT / "results" / "runs" / "toy-encoder_cross_decoder-dk16-s1-u1500.json").read_text())
    record["settings"]["decoding"] = settings.decoding(cli.read_run("toy", "all", [])[0])
    folder = tmp_path / "none-dk16-s1-u1500"
    folder.mkdir()
    (folder / "record.json").write_text(json.dumps(record))
    words = ["--runs", "none:16", "--output", tmp_path, "--device", "cpu", "--dry-run"]
    assert call("toy", "sweep", *words).stdout == ""
    assert " generation.beam=1" in call("toy", "sweep", *words, "generation.beam=1").stdout
    done = call("toy", "sweep", *words, "generation.beam=1", "--table")
    assert_rejected(done, f"{folder} has a run with different settings: generation.beam 4 (requested: 1)")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("defaults: [nosuch]", "Could not load 'nosuch'"),
        ("{banana: {a: 1}, recipe: {variants: {a: ''}}}", "settings must be in the sections common, task, model"),
        ("{task: {target_lang: no}, recipe: {variants: {a: ''}}}", "task.target_lang must be text, in quotes if YAML"),
        ("recipe: {variants: {a: common.cpu=true}}", "common.cpu must be left out"),
        ("[", "while parsing"),
    ],
)
def test_rejects_wrong_files_of_settings(text, message, call, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(text, encoding="utf-8")
    done = call("toy", "--config", file, "--variant", "a", "--device", "cpu", "--dry-run")
    assert_rejected(done, message)


@pytest.mark.parametrize("step", ["train", "sweep"])
def test_rejects_an_output_that_is_not_writable(step, call, tmp_path):
    file = tmp_path / "file"
    file.touch()
    for output in (file, file / "run", Path("/proc/nosuch")):
        done = call("toy", step, "--output", output, "--device", "cpu")
        assert_rejected(done, f"--output must be a writable folder; got {output} (")


def test_a_missing_package_is_an_error_before_any_work(call, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    done = call("toy", "common.wandb_project=x", "--output", tmp_path / "run", "--device", "cpu")
    assert_rejected(done, "--wandb-project needs wandb, which is not installed; leave out the flag or run: pip")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_script_has_help_and_rejects_unknown_options(script, tmp_path):
    name, link = script.relative_to(ROOT), tmp_path / "checkout"
    link.symlink_to(ROOT)  # as in home folders of clusters
    program_name = name.stem if name.parts[0] == "data_prep" else name.parent.name
    help_text = program(name.parts[0], program_name, "--help").stdout
    assert f"usage: {name}" in help_text
    assert "--output " in help_text or "RECORD.json" in help_text
    done = run("bash", name, "--sauce", "x", check=False, cwd=link, env={"CDPATH": "."})
    assert done.returncode == 2
    # argparse names missing arguments first
    required = "" if name.parent.name in ("glue", "heads", "lookup", "reparam") else "un"
    assert re.search(rf"^{name}: error: {required}.*argument", done.stderr, re.MULTILINE)
    assert list(tmp_path.iterdir()) == [link]


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_scripts_pass_shellcheck():
    run("shellcheck", "--external-sources", *SCRIPTS, RECIPES / "start.sh", RECIPES / "slurm" / "run.sbatch", cwd=ROOT)


def test_a_copy_of_a_yaml_file_is_valid():
    cli.read_run("wmt14_en_de", "all", ["--config", str(RECIPES / "wmt14_en_de" / "wmt14_en_de.yaml")])


@pytest.mark.parametrize("name", ["model.pt", "dict.de.txt", "translation.json", "README.md", "record.json"])
def test_incomplete_model_folder_is_not_taken_for_finished(name, tmp_path):
    model = shutil.copytree(ROOT / "results" / "models" / "convergence-collaborative-32", tmp_path / "model")
    export(tmp_path, tmp_path, model)  # control: nothing is missing
    (model / name).unlink()
    with pytest.raises(UserError, match=f"{name}.*; to make the folder again, run: rm -r {model} and then the same"):
        export(tmp_path, tmp_path, model)
