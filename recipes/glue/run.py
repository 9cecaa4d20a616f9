#!/usr/bin/env python3
"""Table 2 of the paper: fine-tune on GLUE, make the heads collaborative at several key dims, fine-tune each again.

    run.py --model google-bert/bert-base-uncased
    run.py --rehearse bert     # a small model on a generated task, in minutes on one CPU core, without the internet

The same command continues an interrupted run at the last epoch that was finished. OUTPUT: per task the models and
record.json; table.md.
"""

import argparse
import contextlib
import logging
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

try:
    import torch
    import transformers
    from table import PAPER, table
    from tasks import GLUE, TASKS, fetch, read, rehearsal
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer

    import collab_fairseq.reparam.huggingface as hf
except ImportError as error:
    sys.exit(f"recipes/glue/run.py: error: {error}; pip install 'collab_fairseq[huggingface,plots]'")

from collab_fairseq.checkpoints import sha256
from collab_fairseq.cli.main import guarded
from collab_fairseq.records.files import write_text
from collab_fairseq.records.record import Record

logger = logging.getLogger("glue")
ROOT = Path(__file__).resolve().parents[2]


class Study:
    """One task, one model, one seed: stages, each a model and a part of the record."""

    def __init__(self, name: str, args: argparse.Namespace) -> None:
        self.name, self.task, self.args = name, TASKS[name], args
        self.cpu = args.device == "cpu" or not torch.cuda.is_available()
        self.tokenizer = AutoTokenizer.from_pretrained(args.model)
        self.splits = {split: read(args.data / name / f"{split}.jsonl") for split in ("train", *self.task.validation)}
        config = transformers.AutoConfig.from_pretrained(args.model)
        (args.output / name).mkdir(parents=True, exist_ok=True)
        settings = {
            **{key: getattr(args, key) for key in ("seed", "lr", "batch_size", "max_length", "calibration")},
            "task": name, "epochs": args.epochs or self.task.epochs, "transformers": transformers.__version__,
            "model": {"name": Path(args.model).name, "type": config.model_type, "width": config.hidden_size},
            "data": {file.name: sha256(file) for file in sorted((args.data / name).glob("*.jsonl"))},
        }  # fmt: skip
        self.record = Record(
            "study", f"glue-{Path(args.model).name}-{name}-s{args.seed}",
            shlex.join(["recipes/glue/run.py", *sys.argv[1:]]), settings,
            args.output / name / "record.json", device="cpu" if self.cpu else "gpu", threads=torch.get_num_threads(),
        )  # fmt: skip

    def batch(self, examples: List[Dict[str, Any]]) -> Any:
        """What the model reads."""
        texts = [[example[field] for example in examples] for field in self.task.fields]
        options = {"truncation": True, "max_length": self.args.max_length, "padding": True, "return_tensors": "pt"}
        number = torch.float if self.task.labels == 1 else torch.long
        labels = torch.tensor([example["label"] for example in examples], dtype=number)
        return {**self.tokenizer(*texts, **options), "labels": labels}

    def stage(self, name: str) -> None:
        """`standard`: fine-tuned; `converted/16`: that one made collaborative; `tuned/16`: fine-tuned again."""
        done = name in self.record.parts
        found = self.record.part(name, lambda: self.run(name))
        logger.info("%s/%s: %.2f%s", self.name, name, found["score"], ", done before" if done else "")
        shutil.rmtree(self.folder(name) / "checkpoints", ignore_errors=True)

    def folder(self, stage: str) -> Path:
        return Path(self.args.output, self.name, stage)

    def run(self, name: str) -> Dict[str, Any]:
        kind, _, key_dim = name.partition("/")
        args, folder, found = self.args, self.folder(name), {}
        transformers.set_seed(args.seed)
        if kind == "standard":
            model = AutoModelForSequenceClassification.from_pretrained(args.model, num_labels=self.task.labels)
            hf.check_convertible(model)
        elif kind == "tuned":
            model = hf.from_pretrained(self.folder(f"converted/{key_dim}"))
        else:
            source = AutoModelForSequenceClassification.from_pretrained(self.folder("standard"))
            train, errors = self.splits["train"], found.setdefault("errors", {})
            chosen = train[:: max(1, len(train) // args.calibration)][: args.calibration] if args.calibration else []
            batches = [self.batch(chosen[i : i + args.batch_size]) for i in range(0, len(chosen), args.batch_size)]
            model = hf.to_collaborative(
                source.to("cpu" if self.cpu else "cuda"), int(key_dim), calibration=batches or None, seed=args.seed,
                progress=lambda layer, fit: errors.update({layer: fit.error}),
            )  # fmt: skip
        options = transformers.TrainingArguments(
            output_dir=str(folder / "checkpoints"), learning_rate=args.lr, weight_decay=0.0, seed=args.seed,
            num_train_epochs=args.epochs or self.task.epochs, per_device_train_batch_size=args.batch_size,
            per_device_eval_batch_size=4 * args.batch_size, save_strategy="epoch", save_total_limit=1, use_cpu=self.cpu,
            dataloader_pin_memory=not self.cpu, report_to="none", remove_unused_columns=False,
            disable_tqdm=not sys.stderr.isatty(),
        )  # fmt: skip
        trainer = Trainer(model=model, args=options, train_dataset=self.splits["train"], data_collator=self.batch)
        if kind != "converted":
            last = last_whole(folder / "checkpoints")
            if last:
                logger.info("%s/%s: resuming from %s", self.name, name, last.name)
            trainer.train(resume_from_checkpoint=str(last) if last else None)
        predicted = {split: trainer.predict(self.splits[split]) for split in self.task.validation}
        metrics = {split: self.task.measure(done.predictions, done.label_ids) for split, done in predicted.items()}
        values = [value for split in metrics.values() for value in split.values()]
        model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        score = 100 * sum(values) / len(values)
        return {**found, "parameters": model.num_parameters(), "metrics": metrics, "score": score}


def last_whole(folder: Path) -> Optional[Path]:
    """The newest checkpoint of a Trainer that was written to its end, which is trainer_state.json."""
    states = folder.glob("checkpoint-*/trainer_state.json")
    whole = [state.parent for state in states if state.read_text(encoding="utf-8").endswith("}\n")]
    return max(whole, key=lambda checkpoint: int(checkpoint.name.partition("-")[2]), default=None)


def numbers(text: str) -> List[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--model", help="BERT, DistilBERT or ALBERT: a name of the Hugging Face hub, or a folder")
    what.add_argument("--rehearse", choices=("bert", "distilbert", "albert"), help="without the internet")
    add = parser.add_argument
    add("--tasks", default=",".join(GLUE), help="(default: %(default)s)")
    add("--key-dims", type=numbers, help="separated by commas (default: those of the paper; 8,2 in the rehearsal)")
    add("--data", type=Path, default=ROOT / "data/glue", help="missing tasks are fetched to it")
    add("--output", type=Path, help="(default: runs/glue/<model>/seed<N>)")
    add("--seed", type=int, default=1)
    add("--epochs", type=float, help="of either fine-tuning (default: 3; SST-2 and RTE 10)")
    add("--lr", type=float, help="(default: 2e-5; 1e-3 in the rehearsal)")
    add("--batch-size", type=int, default=32, help="(default: %(default)s)")
    add("--max-length", type=int, default=128, help="tokens of an example (default: %(default)s)")
    add("--calibration", type=int, default=256, help="sentences; 0: none (default: %(default)s)")
    add("--sentences", type=int, default=4000, help="of the rehearsal (default: %(default)s)")
    add("--device", choices=("auto", "cpu"), default="auto")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="glue: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    transformers.logging.disable_progress_bar()
    name = args.model or f"rehearsal-{args.rehearse}"
    kind = re.search("distilbert|albert|bert", name.lower())
    if not (args.key_dims or kind):
        parser.error(f"the paper has no key dims for {name}; name them with --key-dims")
    paper = [8, 2] if args.rehearse else [dim for dim in PAPER[kind[0], 768] if dim] if kind else []
    key_dims = args.key_dims or paper
    unknown = set(args.tasks.split(",")) - set(TASKS)
    if unknown:
        parser.error(f"--tasks must be among {', '.join(GLUE)}, but has {', '.join(sorted(unknown))}")
    args.lr = args.lr or (1e-3 if args.rehearse else 2e-5)
    args.output = (args.output or ROOT / "runs/glue" / Path(name).name / f"seed{args.seed}").absolute()
    if args.rehearse:
        torch.set_num_threads(1)
        made = args.output / f"input-{args.rehearse}-{args.sentences}"
        args.model, args.data, args.tasks = str(made / args.rehearse), made / "data", "toy"
        rehearsal(made, args.rehearse, args.sentences, args.seed)
    records = []
    with contextlib.redirect_stdout(sys.stderr):  # of the Trainer
        for task in args.tasks.split(","):
            fetch(task, args.data)
            study = Study(task, args)
            study.stage("standard")
            for key_dim in key_dims:
                study.stage(f"converted/{key_dim}")
                study.stage(f"tuned/{key_dim}")
            records.append(study.record.content)
    write_text(table(records), args.output / "table.md")
    sys.stdout.write(table(records))


if __name__ == "__main__":
    sys.exit(guarded("recipes/glue/run.py", main))
