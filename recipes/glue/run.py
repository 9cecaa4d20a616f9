"""Fine-tune on GLUE, convert to collaborative heads, fine-tune again: Table 2 of the paper.

    python -m recipes glue --model google-bert/bert-base-uncased
    python -m recipes glue --rehearse bert     # a small model, in minutes, without internet access

The same command resumes an interrupted run from the last finished epoch. OUTPUT contains the models and record.json of
each task, and table.md.
"""

import argparse
import contextlib
import logging
import re
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np
import torch
import transformers
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer

import collab_fairseq.reparam.huggingface as hf
from collab_fairseq.checkpoints import file_setting, sha256
from collab_fairseq.cli.options import command, number, numbers
from collab_fairseq.files import write_text
from collab_fairseq.huggingface import check_loaded, check_tokens
from collab_fairseq.progress import Progress
from collab_fairseq.records.record import Record
from fairseq_modern.errors import UserError
from recipes import ROOT
from recipes.glue.paper import PAPER
from recipes.glue.table import CONSTANT, STANDARD, table
from recipes.glue.tasks import GLUE, TASKS, fetch, read, rehearsal

logger = logging.getLogger("glue")
#: number of training examples in which unknown tokens are counted
UNKNOWN_SAMPLE = 1000
#: updates between two measurements of the loss
LOGGING_STEPS = 20
#: of all weights, whatever that of the file: steps of 2e-5 vanish in half precision
PRECISION = {"dtype": torch.float32}


class Study:
    """One task, one model, one seed. Each stage results in a model and a part of the record.

    Stages: ``constant`` predicts the most frequent label of the training set, ``standard`` is fine-tuned,
    ``converted/384`` is its conversion, ``tuned/384`` is fine-tuned again.
    """

    def __init__(self, name: str, args: argparse.Namespace) -> None:
        self.name, self.task, self.args = name, TASKS[name], args
        self.epochs = self.task.epochs if args.epochs is None else args.epochs
        self.device = "cpu" if args.device == "cpu" or not torch.cuda.is_available() else "cuda"
        self.tokenizer = AutoTokenizer.from_pretrained(args.model)
        data = args.data / name
        self.splits = {split: read(data / f"{split}.jsonl") for split in ("train", *self.task.validation)}
        sample = self.splits["train"][:UNKNOWN_SAMPLE]
        check_tokens(self.tokenizer, [self.batch(sample)], f"{name}/train.jsonl")
        config = transformers.AutoConfig.from_pretrained(args.model)
        folder = args.output / name
        folder.mkdir(parents=True, exist_ok=True)
        model_name = Path(args.model).name
        settings = {key: getattr(args, key) for key in ("seed", "lr", "batch_size", "max_length", "calibration")}
        settings.update(
            task=name,
            epochs=self.epochs,
            transformers=transformers.__version__,
            model={"name": model_name, "type": config.model_type, "width": config.hidden_size},
            weights=file_setting(args.model) if Path(args.model).is_dir() else args.model,
            data={file.name: sha256(file) for file in sorted(data.glob("*.jsonl"))},
        )
        line, title = command("python -m recipes glue"), f"glue-{model_name}-{name}-s{args.seed}"
        self.record = Record("study", title, line, settings, folder / "record.json", device=self.device)
        self.record.save()  # so that an interrupted stage resumes with the same settings only

    def stage(self, name: str) -> None:
        """Run a stage, unless the record has it."""
        finished = name in self.record.parts
        result = self.record.part(name, lambda: self.run(name))
        logger.info("%s/%s: %.2f%s", self.name, name, result["score"], ", already done" if finished else "")
        shutil.rmtree(self.folder(name) / "checkpoints", ignore_errors=True)

    def folder(self, stage: str) -> Path:
        return Path(self.args.output, self.name, stage)

    def run(self, name: str) -> Dict[str, Any]:
        """The record's part for a stage."""
        if name == CONSTANT:
            return self.constant()
        kind, _, key_dim = name.partition("/")
        result: Dict[str, Any] = {}
        transformers.set_seed(self.args.seed)
        if kind == STANDARD:
            model, info = AutoModelForSequenceClassification.from_pretrained(
                self.args.model, num_labels=self.task.labels, output_loading_info=True, **PRECISION
            )
            base, prefix = type(model.base_model).__name__, f"{model.base_model_prefix}."
            check_loaded(self.args.model, base, info["missing_keys"], prefix)  # the classifier is new
            hf.check_convertible(model)
        elif kind == "converted":
            model, result["errors"] = self.convert(int(key_dim))
        else:
            model = hf.from_pretrained(self.folder(f"converted/{key_dim}"), **PRECISION)
        trainer = self.trainer(model, name)
        if kind != "converted":
            checkpoint = latest_complete(self.folder(name) / "checkpoints")
            if checkpoint:
                logger.info("%s/%s: resuming from %s", self.name, name, checkpoint.name)
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        metrics = {}
        for split in self.task.validation:
            output = trainer.predict(self.splits[split])
            metrics[split] = self.task.measure(output.predictions, output.label_ids)
        model.save_pretrained(self.folder(name))
        self.tokenizer.save_pretrained(self.folder(name))
        return {**result, "parameters": model.num_parameters(), **scored(metrics)}

    def constant(self) -> Dict[str, Any]:
        """The level of a constant prediction, :meth:`.Task.constant`."""
        train = [example["label"] for example in self.splits["train"]]
        metrics = {}
        for split in self.task.validation:
            labels = np.array([example["label"] for example in self.splits[split]])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # correlations with a constant are undefined
                metrics[split] = self.task.measure(self.task.constant(train, len(labels)), labels)
        return scored(metrics)

    def convert(self, key_dim: int) -> Tuple[Any, Dict[str, float]]:
        """The fine-tuned model with collaborative heads, and the relative error of each layer."""
        folder = self.folder(STANDARD)
        source = AutoModelForSequenceClassification.from_pretrained(folder, **PRECISION).to(self.device)
        train, sentences, batch_size = self.splits["train"], self.args.calibration, self.args.batch_size
        batches = None
        if sentences:
            sample = train[:: max(1, len(train) // sentences)][:sentences]
            batches = [self.batch(sample[start : start + batch_size]) for start in range(0, len(sample), batch_size)]
        errors: Dict[str, float] = {}
        options = {"seed": self.args.seed, "progress": lambda layer, fit: errors.update({layer: fit.error})}
        return hf.to_collaborative(source, key_dim, calibration=batches, **options), errors

    def batch(self, examples: List[Dict[str, Any]]) -> Any:
        """Inputs and labels of the model."""
        texts = [[example[field] for example in examples] for field in self.task.fields]
        max_length = self.args.max_length
        inputs = self.tokenizer(*texts, truncation=True, max_length=max_length, padding=True, return_tensors="pt")
        dtype = torch.float if self.task.labels == 1 else torch.long
        return {**inputs, "labels": torch.tensor([example["label"] for example in examples], dtype=dtype)}

    def trainer(self, model: Any, stage: str) -> Trainer:
        """transformers' Trainer with the settings of the paper."""
        args = self.args
        options = transformers.TrainingArguments(
            output_dir=str(self.folder(stage) / "checkpoints"),
            learning_rate=args.lr,
            weight_decay=0.0,
            seed=args.seed,
            num_train_epochs=self.epochs,
            per_device_train_batch_size=args.batch_size,
            per_device_eval_batch_size=4 * args.batch_size,
            save_strategy="epoch",
            save_total_limit=1,
            use_cpu=self.device == "cpu",
            dataloader_pin_memory=self.device != "cpu",
            report_to="none",
            remove_unused_columns=False,
            logging_steps=LOGGING_STEPS,
            disable_tqdm=True,
        )
        options._n_gpu = min(1, options.n_gpu)  # the Trainer would multiply the batch by the number of GPUs
        trainer = Trainer(model=model, args=options, train_dataset=self.splits["train"], data_collator=self.batch)
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.add_callback(ShowProgress(f"{self.name}/{stage}"))
        return trainer


class ShowProgress(transformers.TrainerCallback):
    """Shows steps and loss of a training run."""

    def __init__(self, title: str) -> None:
        self.title = title

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.progress = Progress(self.title, state.max_steps, "steps", done=state.global_step, logger=logger)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if logs and "loss" in logs:
            self.progress.advance(state.global_step - self.progress.n, f"loss {float(logs['loss']):.3f}")

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.progress.update(state.global_step - self.progress.n)
        self.progress.close()


def scored(metrics: Dict[str, Dict[str, float]]) -> Dict[str, Any]:
    """The metrics of each validation set, and the score, 100 × their mean."""
    values = [value for of_split in metrics.values() for value in of_split.values()]
    return {"metrics": metrics, "score": 100 * sum(values) / len(values)}


def latest_complete(folder: Path) -> Optional[Path]:
    """The latest checkpoint that the Trainer wrote completely; it writes trainer_state.json last."""
    states = folder.glob("checkpoint-*/trainer_state.json")
    complete = [state.parent for state in states if state.read_text(encoding="utf-8").endswith("}\n")]
    return max(complete, key=lambda checkpoint: int(checkpoint.name.partition("-")[2]), default=None)


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("recipes/glue/run.sh", description=__doc__, formatter_class=formatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", help="BERT, DistilBERT or ALBERT: a name of the Hugging Face hub, or a folder")
    text = "rehearse with a small random model, without internet access"
    source.add_argument("--rehearse", choices=("bert", "distilbert", "albert"), help=text)
    add = parser.add_argument
    add("--tasks", default=",".join(GLUE), help="tasks, separated by commas (default: %(default)s)")
    text = "key dimensions, separated by commas (default: those of the paper; 8,2 in the rehearsal)"
    add("--key-dims", type=numbers, help=text)
    add("--data", type=Path, default=ROOT / "data/glue", help="folder of the tasks; missing tasks are downloaded to it")
    add("--output", type=Path, help="output folder (default: runs/glue/<model>/seed<N>)")
    add("--seed", type=int, default=1, help="random seed (default: %(default)s)")
    add("--epochs", type=float, help="epochs of each fine-tuning (default: 3; SST-2 and RTE 10)")
    add("--lr", type=float, help="learning rate (default: 2e-5; 1e-3 in the rehearsal)")
    add("--batch-size", type=int, default=32, help="examples per training batch (default: %(default)s)")
    add("--max-length", type=int, default=128, help="maximum number of tokens of an example (default: %(default)s)")
    add("--calibration", type=number, default=256, help="calibration sentences; 0: none (default: %(default)s)")
    add("--discard", action="store_true", help="keep the standard models only; the record keeps all scores")
    add("--sentences", type=int, default=4000, help="training sentences of the rehearsal (default: %(default)s)")
    text = "auto (a GPU if available) or cpu (default: %(default)s)"
    add("--device", choices=("auto", "cpu"), default="auto", help=text)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="glue: %(message)s")
    for name in ("httpx", "httpx2"):  # of huggingface_hub 1 and 2
        logging.getLogger(name).setLevel(logging.WARNING)
    transformers.logging.disable_progress_bar()
    unknown = sorted(set(args.tasks.split(",")) - set(TASKS))
    if unknown:
        parser.error(f"--tasks must be among {', '.join(GLUE)}; got {', '.join(unknown)}")
    name = args.model or f"rehearsal-{args.rehearse}"
    args.output = (args.output or ROOT / "runs/glue" / Path(name).name / f"seed{args.seed}").absolute()
    if args.rehearse:
        torch.set_num_threads(1)
        args.key_dims = args.key_dims or [8, 2]
        args.lr = 1e-3 if args.lr is None else args.lr
        inputs = args.output / f"input-{args.rehearse}-{args.sentences}"
        args.model, args.data, args.tasks = str(inputs / args.rehearse), inputs / "data", "toy"
        rehearsal(inputs, args.rehearse, args.sentences, seed=1)  # one model and data for all seeds
    else:
        args.key_dims = args.key_dims or paper_key_dims(name)
        args.lr = 2e-5 if args.lr is None else args.lr
    if not args.key_dims:
        parser.error(f"--key-dims is required: the paper has no key dimensions for {name}")
    check_key_dims(args.key_dims, args.model)
    for task in args.tasks.split(","):
        fetch(task, args.data)
    with contextlib.redirect_stdout(sys.stderr):  # the Trainer prints to standard output
        studies = [Study(task, args) for task in dict.fromkeys(args.tasks.split(","))]  # before the first stage
        for study in studies:
            study.stage(CONSTANT)
            study.stage(STANDARD)
            for key_dim in args.key_dims:
                study.stage(f"converted/{key_dim}")
                study.stage(f"tuned/{key_dim}")
                if args.discard:
                    for kind in ("converted", "tuned"):
                        shutil.rmtree(study.folder(f"{kind}/{key_dim}"), ignore_errors=True)
    records = [study.record.content for study in studies]
    write_text(table(records), args.output / "table.md")
    sys.stdout.write(table(records))


def check_key_dims(key_dims: Sequence[int], model: Union[str, Path]) -> None:
    """Raise UserError for key dimensions above the width of a model."""
    width = transformers.AutoConfig.from_pretrained(model).hidden_size
    above = [key_dim for key_dim in key_dims if key_dim > width]
    if above:
        got = ", ".join(map(str, above))
        raise UserError(f"--key-dims must be at most {width}, the width of {Path(model).name}; got {got}")


def paper_key_dims(model: str) -> List[int]:
    """The key dimensions of the paper for a model of this name, if any."""
    match = re.search("distilbert|albert|bert", model.lower())
    return [key_dim for key_dim in PAPER[match[0]] if key_dim] if match else []
