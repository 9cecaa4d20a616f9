"""Evaluation of a run: translate with each average, score the translations, record everything, publish the model."""

import gzip
import json
import logging
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, Optional

from omegaconf import DictConfig

from collab_fairseq import checkpoints
from collab_fairseq.files import write_bytes, write_json
from collab_fairseq.records.record import load as load_record
from collab_fairseq.records.training import make_record
from fairseq_modern.errors import UserError
from fairseq_modern.files import CHECKSUMS, atomic_write

from . import data
from .folder import check_settings, fingerprint, kept_settings
from .launch import run_logged
from .programs import collab, tool
from .recipe_run import Average, RecipeRun
from .settings import DECODING_SECTIONS, ROOT, decoding, flags, test_sets

logger = logging.getLogger("recipe")


def evaluate(run: RecipeRun) -> None:
    """Translate, score and record each average of a run."""
    main_result = run.average_file(run.final_average())
    if not main_result.exists():
        raise UserError(f"there is no {main_result.name} in {run.output}; the step average makes it")
    data.verify(run)
    check_data(run)
    for average in run.finished_averages():
        load_average(run.average_file(average))  # raises an error if it is damaged
        model = checkpoints.sha256(run.average_file(average))
        for split, name in run.test_sets.items():
            translate(run, average, split, name, model)
        for name in run.test_sets.values():
            score(run, average, name)
        record(run, average)
        if not average.suffix and not run.recipe.valid:
            publish(run)


def load_average(file: Path) -> Dict[str, Any]:
    """The checkpoint of an average; the error says how to make it again."""
    try:
        return checkpoints.load_with_model(file)
    except UserError as error:
        raise UserError(f"{error}; run: rm {shlex.quote(str(file))} and then the same command") from error


def check_data(run: RecipeRun) -> None:
    """Check that the data and their languages are those of the run in the folder."""
    existing, requested = kept_settings(run.output), run.identity()
    names = [name for name in {**existing, **requested} if name == "data" or name.startswith("task.")]
    check_settings(run.output, *({name: each.get(name) for name in names} for each in (existing, requested)))


def translate(run: RecipeRun, average: Average, split: str, name: str, model: str) -> None:
    """Translate a split with an average, whose SHA-256 is `model`: NAME.generate.log. Its first line has all that
    identifies it, its last line is fairseq's score.
    """
    cfg, stem = run.cfg, f"{name}{average.suffix}"
    log = run.output / f"{stem}.generate.log"
    identity = {"model": model, "data": fingerprint(run.data), "split": split, **decoding(cfg)}
    first_line = f"{json.dumps(identity)}\n".encode()
    if log.exists():
        content = log.read_bytes()
        if content.startswith(first_line) and content.rstrip().rpartition(b"\n")[2].startswith(b"Generate "):
            logger.info("translating %s: already done", stem)
            return
        logger.info("translating %s again: %s is incomplete, or of another model, data or decoding", stem, log.name)
    else:
        logger.info("translating %s", stem)
    command = [tool("fairseq-generate"), run.data / "data-bin", "--path", run.average_file(average)]
    command += ["--gen-subset", split, *flags(cfg, "task", *DECODING_SECTIONS)]
    command += ["--max-tokens", run.recipe.decoding_tokens, "--seed", cfg.common.seed, "--num-workers", 0]
    command += run.machine.flags()
    if cfg.common.user_dir:
        command += ["--user-dir", cfg.common.user_dir]
    errors = Path(f"{log}.err")
    environment = {**os.environ, "OMP_NUM_THREADS": str(run.machine.threads)}
    with atomic_write(str(log)) as stdout, open(errors, "wb") as stderr:
        stdout.write(first_line)
        stdout.flush()
        if run_logged(command, stdout=stdout, stderr=stderr, env=environment):
            lines = errors.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
            sys.stderr.writelines(lines[-5:])
            raise UserError(f"translating {name} failed, see {errors}")
    errors.unlink()


def score(run: RecipeRun, average: Average, name: str) -> None:
    """Print the scores of a test set. Writes NAME.scores.json and, in hypotheses/, the scored text."""
    language, stem = run.cfg.task.target_lang, f"{name}{average.suffix}"
    log, scores = run.output / f"{stem}.generate.log", run.output / f"{stem}.scores.json"
    hypotheses = run.output / "hypotheses" / f"{stem}.{language}.gz"
    hypotheses.parent.mkdir(exist_ok=True)
    reference = references(run, name)
    check_references(record_file(run, average), name, reference)
    sys.stdout.write(f"{name}\n")
    outputs = ["--json", scores, "--hypotheses", hypotheses]
    collab("score", log, "--reference", reference, "--target-lang", language, *outputs)
    check_lengths(name, scores, run.data / "prepared.txt", name in (run.recipe.sacrebleu_sets or {}))


def references(run: RecipeRun, name: str) -> Path:
    """The raw references of a test set: those of --reference, those of the data, or sacreBLEU's, which it downloads."""
    task, file = run.cfg.task, reference_file(run.cfg, run.data, name)
    sacrebleu_set = (run.recipe.sacrebleu_sets or {}).get(name)
    if sacrebleu_set and not run.recipe.reference and not file.is_file():
        return download_references(name, sacrebleu_set, f"{task.source_lang}-{task.target_lang}")
    if not file.is_file():
        raise UserError(f"there are no references {file}; name a file of raw references with --reference")
    return file


def reference_file(cfg: DictConfig, data: Path, name: str) -> Path:
    """The file of --reference, or that of the data, which may not exist."""
    option = cfg.recipe.reference
    return ROOT / option if option else data / "raw" / f"{name}.{cfg.task.target_lang}"


def check_scores(record: Path, cfg: DictConfig, data: Path) -> bool:
    """Whether a record has scores of the test sets.

    Raises:
        UserError: its scores are of other test sets or, unless their file is missing here, of other references.
    """
    recorded, names = recorded_scores(record), set(test_sets(cfg, cfg.recipe.valid).values())
    if recorded and set(recorded) != names:
        raise UserError(f"{record} has scores of {', '.join(sorted(recorded))}; move it away to record other test sets")
    for name in recorded:
        file = reference_file(cfg, data, name)
        if cfg.recipe.reference or file.is_file():
            check_references(record, name, file)
    return set(recorded) == names


def check_references(record: Path, name: str, reference: Path) -> None:
    """Check that the scores of a test set in a record, if it exists, were computed with these references."""
    scores = recorded_scores(record).get(name)
    digest = checkpoints.sha256(reference)
    if scores and scores["files"][-1]["sha256"] != digest:
        recorded = "{file}, SHA-256 {sha256}".format(**scores["files"][-1])
        raise UserError(
            f"the references of {name} must be those of {record}: {recorded}; got {reference}, SHA-256 {digest}; "
            "for scores with other references, use collab score"
        )


def download_references(name: str, sacrebleu_set: str, languages: str) -> Path:
    from sacrebleu.utils import get_reference_files

    try:
        return Path(get_reference_files(sacrebleu_set, languages)[0])
    except (Exception, SystemExit) as error:
        raise UserError(
            f"the references of {name} could not be downloaded ({error}); on a machine with internet access, run "
            f"'sacrebleu -t {sacrebleu_set} -l {languages} --echo ref > FILE', then give --reference FILE"
        ) from error


def check_lengths(name: str, scores: Path, prepared: Path, published: bool = True) -> None:
    """Compare the lengths of the references in the scores with those of the published test set in prepared.txt.

    Missing lengths of a `published` test set are reported.
    """
    lines = prepared.read_text(encoding="utf-8").splitlines() if prepared.is_file() else []
    rows = [line.split("\t")[2:] for line in lines if line.startswith(f"reference\t{name}\t")]
    if not rows:
        if published:
            logger.info("%s: reference lengths not checked: %s has none", name, prepared)
        return
    entries = json.loads(scores.read_text(encoding="utf-8"))["scores"]
    lengths = {entry["metric"]: entry["ref_len"] for entry in entries}
    for metric, expected in zip(("compound-split BLEU", "sacreBLEU"), rows[0], strict=True):
        if expected == "-":
            continue
        if lengths.get(metric) != int(expected):
            raise UserError(
                f"{name}: the references must have {expected} tokens for {metric}; got {lengths.get(metric)}: they "
                "differ from those of published results"
            )
        sys.stdout.write(f"{name}: the references have {expected} tokens for {metric}, as in published results\n")


def record_file(run: RecipeRun, average: Average) -> Path:
    return run.output / f"record{average.suffix}{'.valid' if run.recipe.valid else ''}.json"


def recorded_scores(file: Path) -> Dict[str, Any]:
    """Test set → scores in a record; empty without a record.

    Raises:
        UserError: it is damaged.
    """
    if not file.exists():
        return {}
    try:
        return dict(load_record(file, "training")["parts"]["scores"])
    except (UserError, LookupError, TypeError, ValueError) as error:
        again = f"rm {shlex.quote(str(file))}"
        raise UserError(f"{file} is no complete record; run: {again} and then the same command") from error


def record(run: RecipeRun, average: Average) -> None:
    """Write the record of an average: command, settings, data, learning curve, scores, losses.

    An existing record stays if it has the scores of the present translations.
    """
    file, stage = record_file(run, average), average.stage_suffix
    scores = {name: run.output / f"{name}{average.suffix}.scores.json" for name in run.test_sets.values()}
    check_scores(file, run.cfg, run.data)
    recorded = recorded_scores(file)
    scored = {name: json.loads(path.read_text(encoding="utf-8"))["files"] for name, path in scores.items()}
    if not file.exists() or {name: part["files"] for name, part in recorded.items()} != scored:
        checkpoint = run.average_file(average)
        content = make_record(
            run.name + file.stem.removeprefix("record"),
            run.command_line,
            checkpoint=load_average(checkpoint),
            train_log=run.output / f"train{stage}.log",
            usage=run.output / f"train{stage}.usage.jsonl",
            data_checksums=run.data / CHECKSUMS,
            seed=run.cfg.common.seed,
            threads=run.machine.threads,
            repository=ROOT,
            scores=scores,
            losses=losses(run, checkpoint),
            files=file_settings(run),
            decoding=decoding(run.cfg),
        )
        write_json(content, file)
    logger.info("record: %s", file)


def file_settings(run: RecipeRun) -> Dict[str, Dict[str, str]]:
    """Settings that name a file: setting → file name and SHA-256."""
    files = {"model.attention_from": run.cfg.model.get("attention_from")}
    if run.recipe.training_module:
        files["recipe.training_module"] = str(ROOT / run.recipe.training_module / "__init__.py")
    return {setting: checkpoints.file_setting(file) for setting, file in files.items() if file}


def losses(run: RecipeRun, checkpoint: Path) -> Dict[str, Dict[str, Any]]:
    """Loss on the validation and test sets in float32. A set that the model cannot read is reported and left out."""
    import torch

    from collab_fairseq.translation import load_model
    from collab_fairseq.translation.evaluation import loss, sentence_losses

    torch.set_num_threads(run.machine.threads)
    model = load_model(checkpoint, str(run.data / "data-bin"))
    results = {}
    for split, name in {"valid": "valid", **run.test_sets}.items():
        try:
            results[name] = {**loss(model, split)._asdict(), "sentences": sentence_losses(model, split)}
        except UserError as error:  # for example unknown units; results of other sets are kept
            logger.warning("no loss on %s: %s", name, error)
    return results


def publish(run: RecipeRun) -> None:
    """Export the model folder and translate the sets without references, if the recipe has any."""
    if not run.recipe.blind:
        return
    model = run.output / "model"
    if model.is_dir() and is_outdated(model, run.output):
        files = {name: blind_translations(run.output, run.cfg, name) for name in run.recipe.blind}
        for name, file in files.items():
            if file.is_file() and not blind_source(run.cfg, name):
                option = run.recipe.source_option
                raise UserError(f"{file} must be made again, without a text: give {option}, or move the file away")
        for file in files.values():
            file.unlink(missing_ok=True)
    export(run.output, run.data / "data-bin", model)
    for name in run.recipe.blind:
        translate_blind(run, name)


def export(run: Path, data_bin: Path, model: Path) -> None:
    """Export a run to a folder for `collab translate`, unless the folder exists and has the record of the run.

    Raises:
        UserError: it exists, but a file in it is missing or damaged.
    """
    from collab_fairseq.translation.tokenizer import read_card

    if is_outdated(model, run):
        logger.info("exporting %s again: the run has another record", model)
        shutil.rmtree(model)
    if not model.is_dir():
        words = ["--to", "folder", "--half", "--data", data_bin, "--record", run / "record.json", "--output", model]
        collab("export", run / "averaged.pt", *words)
        return
    try:
        read_card(model)
        for name in ("README.md", "record.json"):
            if not (model / name).is_file():
                raise UserError(f"{model} has no {name}")
    except UserError as error:
        raise UserError(
            f"{error}; to make the folder again, run: rm -r {shlex.quote(str(model))} and then the same command"
        ) from error


def is_outdated(model: Path, run: Path) -> bool:
    """Whether an exported folder has another record than the run."""
    exported, record = model / "record.json", run / "record.json"
    return exported.is_file() and record.is_file() and exported.read_bytes() != record.read_bytes()


def blind_source(cfg: DictConfig, name: str) -> Optional[Path]:
    """The text of a set without references in a downloaded corpus (default: `recipe.blind_sources`), if available."""
    folder = cfg.recipe.corpus or cfg.recipe.blind_sources
    source = Path(folder, f"{name}.{cfg.task.source_lang}.gz") if folder else None
    return source if source and source.is_file() else None


def blind_translations(folder: Path, cfg: DictConfig, name: str) -> Path:
    """The file of translations of a set without references, in the folder of a run."""
    return folder / "hypotheses" / f"{name}.{cfg.task.target_lang}.gz"


def translate_blind(run: RecipeRun, name: str) -> None:
    """Translate a set without references with the exported model, if its text is available."""
    translations, source = blind_translations(run.output, run.cfg, name), blind_source(run.cfg, name)
    if translations.is_file():
        logger.info("translating %s: already done", name)
        return
    if not source:
        file, option = f"{name}.{run.cfg.task.source_lang}.gz", run.recipe.source_option
        logger.info("not translating %s: there is no %s (%s names its folder)", name, file, option)
        return
    logger.info("translating %s", name)
    command = [tool("collab"), "translate", run.output / "model"]
    command += ["--device", run.machine.device, "--threads", run.machine.threads]
    search = run.cfg.get("generation") or {}
    for setting, flag in (("beam", "--beam"), ("lenpen", "--lenpen"), ("max_len_b", "--max-length")):
        if setting in search:
            command += [flag, search[setting]]
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout:
        stdin.write(gzip.decompress(source.read_bytes()))
        stdin.seek(0)
        if run_logged(command, stdin=stdin, stdout=stdout):
            raise UserError(f"{name} could not be translated (see above)")
        stdout.seek(0)
        write_bytes(gzip.compress(stdout.read(), mtime=0), translations)
