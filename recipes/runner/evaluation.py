"""Translating, scoring and recording a run's averages, and publishing its model."""

import gzip
import json
import logging
import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict

from collab_fairseq import checkpoints
from collab_fairseq.records.files import write_bytes, write_json
from collab_fairseq.records.training import make_record
from fairseq_modern.files import atomic_write

from .process import run_logged
from .programs import collab, tool
from .settings import ROOT, RecipeError, flags
from .training import Average, RecipeRun

logger = logging.getLogger("recipe")


def evaluate(run: RecipeRun) -> None:
    """Translate, score and record each of its averages."""
    averages = run.averages()
    own = run.averaged(averages[-1])
    if not own.exists():
        raise RecipeError(f"there is no {own.name} in {run.output}; average.sh makes it")
    run.verify_data()
    for average in averages:
        for split, name in run.sets.items():
            translate(run, average, split, name)
        for name in run.sets.values():
            score(run, average, name)
        record(run, average)
        if not (average.suffix or run.valid):
            publish(run)


def translate(run: RecipeRun, average: Average, split: str, name: str) -> None:
    """Translate a split with an average: NAME.generate.log."""
    log = run.output / f"{name}{average.suffix}.generate.log"
    if log.exists():
        logger.info("translating %s: done before", name)
        return
    logger.info("translating %s", name)
    cfg = run.cfg
    command = [
        tool("fairseq-generate"),
        str(run.data / "data-bin"),
        "--path",
        str(run.averaged(average)),
        "--gen-subset",
        split,
        *flags(cfg, "task", "generation", "common_eval"),
        "--max-tokens",
        str(run.recipe.decoding_tokens),
        *(["--user-dir", cfg.common.user_dir] if cfg.common.user_dir else []),
        *run.machine.flags(),
        "--seed",
        str(cfg.common.seed),
        "--num-workers",
        "0",
    ]
    errors, threads = Path(f"{log}.err"), {**os.environ, "OMP_NUM_THREADS": str(run.machine.threads)}
    with atomic_write(str(log)) as out, open(errors, "wb") as err:
        if run_logged(command, stdout=out, stderr=err, env=threads):
            lines = errors.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
            sys.stderr.writelines(lines[-5:])
            raise RecipeError(f"translating {name} failed, see {errors}")
    errors.unlink()


def references(run: RecipeRun, name: str) -> Path:
    """The raw references of a test set: those that were named, the data's, or sacreBLEU's, which it fetches."""
    task, given = run.cfg.task, run.recipe.reference
    file = ROOT / given if given else run.data / "raw" / f"{name}.{task.target_lang}"
    test_set = (run.recipe.sacrebleu_sets or {}).get(name)
    if test_set and not given and not file.is_file():
        from sacrebleu.utils import get_reference_files

        pair = f"{task.source_lang}-{task.target_lang}"
        try:
            return Path(get_reference_files(test_set, pair)[0])
        except (Exception, SystemExit) as error:
            raise RecipeError(
                f"the references of {name} could not be fetched ({error}); where there is internet, run 'sacrebleu -t "
                f"{test_set} -l {pair} --echo ref > FILE' and give --reference FILE"
            ) from error
    if not file.is_file():
        raise RecipeError(f"there are no references {file}; name a file of raw references with --reference")
    return file


def score(run: RecipeRun, average: Average, name: str) -> None:
    """Print the BLEUs of a test set; keep them as NAME.scores.json, and what was scored in hypotheses/."""
    target, marked = run.cfg.task.target_lang, f"{name}{average.suffix}"
    scores = run.output / f"{marked}.scores.json"
    (run.output / "hypotheses").mkdir(exist_ok=True)
    file = references(run, name)
    sys.stdout.write(f"{name}\n")
    collab(
        "score",
        run.output / f"{marked}.generate.log",
        "--reference",
        file,
        "--target-lang",
        target,
        "--json",
        scores,
        "--hypotheses",
        run.output / "hypotheses" / f"{marked}.{target}.gz",
    )
    check_lengths(name, scores, run.data / "prepared.txt", name in (run.recipe.sacrebleu_sets or {}))


def check_lengths(name: str, scores: Path, prepared: Path, published: bool = True) -> None:
    """Compare the lengths of the references with those of the published test set, if prepared.txt has them.

    Args:
        name: of the test set. scores: of `collab score --json`. prepared: the prepared.txt of the data.
        published: whether the set is a published one, for which prepared.txt should have them.
    """
    rows = prepared.read_text(encoding="utf-8").splitlines() if prepared.is_file() else []
    row = next((row.split("\t")[2:] for row in rows if row.startswith(f"reference\t{name}\t")), None)
    if row is None:
        if published:
            logger.info("%s: reference lengths not checked: %s has none", name, prepared)
        return
    found = {entry["metric"]: entry["ref_len"] for entry in json.loads(scores.read_text(encoding="utf-8"))["scores"]}
    for metric, length in zip(("compound-split BLEU", "sacreBLEU"), row, strict=True):
        if length == "-":
            continue
        if found.get(metric) != int(length):
            raise RecipeError(
                f"{name}: {metric} has {found.get(metric)} tokens in its references, expected {length}: it was scored "
                "against other references than those of the published results"
            )
        sys.stdout.write(f"{name}: {metric} has the {length} tokens in its references that published results have\n")


def record(run: RecipeRun, average: Average) -> None:
    """One JSON of everything that was done and seen."""
    what = f"{average.suffix}.valid" if run.valid else average.suffix
    file, stage = run.output / f"record{what}.json", average.stage_suffix
    if not file.exists():
        checkpoint = run.averaged(average)
        made = make_record(
            f"{run.name}{what}",
            run.command_line,
            checkpoint=checkpoints.load_with_model(checkpoint),
            train_log=run.output / f"train{stage}.log",
            usage=run.output / f"train{stage}.usage.jsonl",
            data_sums=run.data / "SHA256SUMS",
            seed=run.cfg.common.seed,
            threads=run.machine.threads,
            repository=ROOT,
            scores={name: run.output / f"{name}{average.suffix}.scores.json" for name in run.sets.values()},
            losses=losses(run, checkpoint),
            files=files_of(run),
        )
        write_json(made, file)
    logger.info("record: %s", file)


def files_of(run: RecipeRun) -> Dict[str, Dict[str, str]]:
    """Files that a setting names and whose content the config does not hold: setting → file name and SHA-256."""
    named = {"model.attention_from": run.cfg.model.get("attention_from")}
    if run.recipe.training_module:
        named["recipe.training_module"] = str(ROOT / run.recipe.training_module / "__init__.py")
    return {setting: checkpoints.file_setting(file) for setting, file in named.items() if file}


def losses(run: RecipeRun, checkpoint: Path) -> Dict[str, Dict[str, Any]]:
    """Of the validation and test sets, in float32; a set that the model cannot read is told and left out."""
    import torch

    from collab_fairseq.translation import TranslationError, load_model
    from collab_fairseq.translation.evaluation import loss, sentence_losses

    torch.set_num_threads(run.machine.threads)
    trained, found = load_model(checkpoint, str(run.data / "data-bin")), {}
    for split, name in {"valid": "valid", **run.sets}.items():
        try:
            found[name] = {**loss(trained, split)._asdict(), "sentences": sentence_losses(trained, split)}
        except TranslationError as error:  # such as text with unknown units; all else that was measured is kept
            logger.warning("no loss of %s: %s", name, error)
    return found


def export(run: Path, data: Path, model: Path) -> None:
    """The folder for `collab translate` of a run, unless it exists.

    Raises:
        RecipeError: it exists, but a file in it is missing or damaged.
    """
    from collab_fairseq.translation import TranslationError
    from collab_fairseq.translation.tokenizer import read_card
    from collab_fairseq.translation.torch_engine import MODEL

    if model.is_dir():
        try:
            read_card(model)
            for name in (MODEL, "README.md", "record.json"):
                if not (model / name).is_file():
                    raise TranslationError(f"{model} has no {name}")
        except TranslationError as error:
            raise RecipeError(
                f"{error}; to make the folder again, run: rm -r {shlex.quote(str(model))} and then the same command"
            ) from error
    else:
        averaged, record = run / "averaged.pt", run / "record.json"
        collab("export", averaged, "--to", "folder", "--half", "--data", data, "--record", record, "--output", model)


def publish(run: RecipeRun) -> None:
    """The folder model/, and with it translations of the sets that have no references here."""
    if not run.recipe.blind:
        return
    model, sources, cfg = run.output / "model", run.corpus or run.recipe.blind_sources, run.cfg.task
    export(run.output, run.data / "data-bin", model)
    for name in run.recipe.blind:
        text, source = run.output / "hypotheses" / f"{name}.{cfg.target_lang}.gz", f"{name}.{cfg.source_lang}.gz"
        if text.is_file():
            logger.info("translating %s: done before", name)
        elif not sources:
            logger.info("translating %s: %s does not say where its text is", name, run.recipe.source_option)
        elif not Path(sources, source).is_file():
            logger.info("translating %s: there is no %s/%s", name, sources, source)
        else:
            logger.info("translating %s", name)
            device = "cuda" if run.machine.device == "gpu" else "cpu"
            command = [tool("collab"), "translate", str(model), "--device", device, "--threads", run.machine.threads]
            with tempfile.TemporaryFile() as lines, tempfile.TemporaryFile() as found:
                lines.write(gzip.decompress(Path(sources, source).read_bytes()))
                lines.seek(0)
                if run_logged(command, stdin=lines, stdout=found):
                    raise RecipeError(f"{name} could not be translated (see above)")
                found.seek(0)
                write_bytes(gzip.compress(found.read(), mtime=0), text)
