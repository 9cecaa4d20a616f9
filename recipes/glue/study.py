#!/usr/bin/env python3
"""The paper's three steps on one task of GLUE: fine-tune, make the heads collaborative, fine-tune again.

    study.py --task rte --model google-bert/bert-base-uncased --data data/glue --output DIR --key-dims 384,256

Cordonnier, Loukas, Jaggi (2020), https://arxiv.org/abs/2006.16362, Table 2. The heads are decomposed by
collab_fairseq.reparam, weighted by sentences of the training set, instead of the paper's plain decomposition
(--calibration 0 comes near to that). The same command continues an interrupted study at the last epoch that was
finished. DIR: standard/, key-dim-<R>/converted/ and key-dim-<R>/tuned/, each a model and its
stage.json; record.json.
"""

import argparse
import importlib.metadata
import json
import logging
import math
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from tasks import TASKS, DataError, measure, read, sums

from collab_fairseq.reparam import ReparamError
from collab_fairseq.reporting import environment
from collab_fairseq.reporting.files import write_json
from collab_fairseq.reporting.schema import without_paths

try:
    from transformers import (
        AutoConfig,
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        PreTrainedModel,
        Trainer,
        TrainingArguments,
        set_seed,
    )
    from transformers.trainer_utils import get_last_checkpoint

    import collab_fairseq.reparam.huggingface as hf
except ImportError as error:
    sys.exit(f"study.py: error: {error}; pip install 'collab_fairseq[huggingface]'")

logger = logging.getLogger("glue")


class Study:
    """One task, one model, one seed."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.task, self.output = args, TASKS[args.task], Path(args.output)
        self.tokenizer = AutoTokenizer.from_pretrained(args.model)
        self.splits = {split: self.encoded(split) for split in ("train", *self.task.validation)}

    def encoded(self, split: str) -> List[Dict[str, Any]]:
        """The examples of a split as the model reads them."""
        examples = read(self.args.task, self.args.data, split)
        texts = [[example[field] for example in examples] for field in self.task.fields]
        encoding = self.tokenizer(*texts, truncation=True, max_length=self.args.max_length)
        kind = float if self.task.labels == 1 else int
        columns = {**encoding, "labels": [kind(example["label"]) for example in examples]}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def trainer(self, model: PreTrainedModel, folder: Path) -> Trainer:
        args = self.args
        options = TrainingArguments(
            output_dir=str(folder / "checkpoints"), learning_rate=args.lr, num_train_epochs=self.epochs,
            per_device_train_batch_size=args.batch_size, per_device_eval_batch_size=4 * args.batch_size,
            weight_decay=0.0, seed=args.seed, save_strategy="epoch", save_total_limit=1, logging_steps=50,
            report_to="none", use_cpu=args.cpu, dataloader_pin_memory=not args.cpu,
            disable_tqdm=not sys.stderr.isatty(),
        )  # fmt: skip
        collator = DataCollatorWithPadding(self.tokenizer)
        return Trainer(model=model, args=options, train_dataset=self.splits["train"], data_collator=collator)

    @property
    def epochs(self) -> float:
        return self.args.epochs or self.task.epochs

    def scores(self, trainer: Trainer) -> Dict[str, Any]:
        """Score of the task, and every metric of every validation set."""
        metrics = {}
        for split in self.task.validation:
            found = trainer.predict(self.splits[split])  # type: ignore[arg-type]
            outputs = found.predictions[0] if isinstance(found.predictions, tuple) else found.predictions
            metrics[split] = measure(self.task, np.asarray(outputs), np.asarray(found.label_ids))
        values = [value for split in metrics.values() for value in split.values()]
        return {"score": 100 * sum(values) / len(values), "metrics": metrics}

    def finished(self, folder: Path) -> Optional[Dict[str, Any]]:
        """What an earlier run found out at this stage."""
        path = folder / "stage.json"
        if not path.is_file():
            return None
        logger.info("%s: done before", folder.relative_to(self.output))
        found: Dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found

    def finish(self, folder: Path, model: PreTrainedModel, trainer: Trainer, **stage: Any) -> Dict[str, Any]:
        """Evaluate and keep the model; the stage counts as finished with the file that is written last."""
        found = {**stage, "parameters": model.num_parameters(), **self.scores(trainer)}
        model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        write_json(found, folder / "stage.json")
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        logger.info("%s: %.2f", folder.relative_to(self.output), found["score"])
        return found

    def tune(self, folder: Path, model: PreTrainedModel, stage: str, key_dim: Optional[int]) -> Dict[str, Any]:
        """Fine-tune, from the last epoch that an earlier run finished."""
        trainer = self.trainer(model, folder)
        last = last_whole(folder / "checkpoints")
        if last:
            logger.info("%s: going on from %s", folder.relative_to(self.output), Path(last).name)
        result = trainer.train(resume_from_checkpoint=last)
        seconds = None if last else result.metrics["train_runtime"]
        loss = result.metrics["train_loss"]
        if not math.isfinite(loss):
            raise DataError(f"{folder}: the training loss must be finite, but is {loss}; try a smaller --lr")
        return self.finish(folder, model, trainer, stage=stage, key_dim=key_dim, seconds=seconds)

    def standard(self) -> Dict[str, Any]:
        folder = self.output / "standard"
        found = self.finished(folder)
        if found is None:
            set_seed(self.args.seed)
            model = AutoModelForSequenceClassification.from_pretrained(self.args.model, num_labels=self.task.labels)
            hf.check_convertible(model)
            found = self.tune(folder, model, "standard", None)
        return found

    def converted(self, key_dim: int) -> Dict[str, Any]:
        folder = self.output / f"key-dim-{key_dim}" / "converted"
        found = self.finished(folder)
        if found is None:
            model = AutoModelForSequenceClassification.from_pretrained(self.output / "standard")
            chosen = self.splits["train"][:: max(1, len(self.splits["train"]) // max(1, self.args.calibration))]
            collator = DataCollatorWithPadding(self.tokenizer)
            size = self.args.batch_size
            batches = [collator(chosen[i : i + size]) for i in range(0, len(chosen), size)]
            device = "cuda" if torch.cuda.is_available() and not self.args.cpu else "cpu"
            errors: Dict[str, float] = {}
            began = time.perf_counter()
            made = hf.to_collaborative(
                model.to(device), key_dim, calibration=batches if self.args.calibration else None, seed=self.args.seed,
                progress=lambda name, fit: errors.update({name: fit.error}),
            )  # fmt: skip
            seconds = time.perf_counter() - began
            found = self.finish(
                folder, made, self.trainer(made, folder), stage="converted", key_dim=key_dim, seconds=seconds,
                errors=errors,
            )  # fmt: skip
        return found

    def tuned(self, key_dim: int) -> Dict[str, Any]:
        folder = self.output / f"key-dim-{key_dim}" / "tuned"
        found = self.finished(folder)
        if found is None:
            set_seed(self.args.seed)
            found = self.tune(folder, hf.from_pretrained(folder.parent / "converted"), "tuned", key_dim)
        return found

    def run(self) -> Dict[str, Any]:
        """All stages; the record."""
        stages = [self.standard()]
        for key_dim in self.args.key_dims:
            stages += [self.converted(key_dim), self.tuned(key_dim)]
        return self.record(stages)

    def record(self, stages: List[Dict[str, Any]]) -> Dict[str, Any]:
        config, args = AutoConfig.from_pretrained(self.output / "standard"), self.args
        packages = ("transformers", "tokenizers", "accelerate", "safetensors")
        circumstances = environment.circumstances(
            str(Path(__file__).resolve().parent),
            device="gpu" if torch.cuda.is_available() and not args.cpu else "cpu",
            threads=torch.get_num_threads(),
        )
        return {
            "schema": 1,
            "kind": "glue",
            "name": f"glue-{args.model.strip('/').rsplit('/', 1)[-1]}-{args.task}-s{args.seed}",
            "command": without_paths(shlex.join(["recipes/glue/study.py", *sys.argv[1:]])),
            "seed": args.seed,
            "task": args.task,
            "model": {
                "name": without_paths(args.model), "type": config.model_type, "width": config.hidden_size,
                "layers": config.num_hidden_layers, "heads": config.num_attention_heads,
            },
            "settings": {
                "lr": args.lr, "batch_size": args.batch_size, "epochs": self.epochs, "max_length": args.max_length,
                "calibration": args.calibration,
            },
            "stages": stages,
            "data": sums(args.task, args.data),
            **circumstances,
            "versions": {**circumstances["versions"], **{name: importlib.metadata.version(name) for name in packages}},
        }  # fmt: skip


def last_whole(folder: Path) -> Optional[str]:
    """The newest checkpoint that was written to its end, which is its trainer_state.json; others are removed."""
    while folder.is_dir():
        last = get_last_checkpoint(str(folder))
        if last is None:
            break
        try:
            json.loads(Path(last, "trainer_state.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            shutil.rmtree(last)
        else:
            return str(last)
    return None


def check_settings(output: Path, settings: Dict[str, Any]) -> None:
    """A folder holds one run: other settings need another folder."""
    path = output / "settings.json"
    if path.is_file():
        before = json.loads(path.read_text(encoding="utf-8"))
        changed = [f"{key} {before.get(key)}, not {new}" for key, new in settings.items() if before.get(key) != new]
        if changed:
            raise DataError(f"{output} holds a run with {'; '.join(changed)}; choose another --output")
        return
    output.mkdir(parents=True, exist_ok=True)
    write_json(settings, path)


def sizes(text: str) -> List[int]:
    numbers = [int(part) for part in text.split(",")]
    if min(numbers) < 1:
        raise ValueError(text)
    return numbers


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", required=True, choices=TASKS)
    parser.add_argument("--model", required=True, help="BERT, DistilBERT or ALBERT: a name of the hub, or a folder")
    parser.add_argument("--data", type=Path, required=True, help="folder that prepare.py has written")
    parser.add_argument("--output", required=True)
    parser.add_argument("--key-dims", type=sizes, required=True, help="shared key dims, separated by commas")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epochs", type=float, help="of either fine-tuning (default: 3; SST-2 and RTE 10)")
    parser.add_argument("--lr", type=float, default=2e-5, help="(default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="(default: %(default)s)")
    parser.add_argument("--max-length", type=int, default=128, help="tokens of an example (default: %(default)s)")
    parser.add_argument("--calibration", type=int, default=256, help="sentences; 0: none (default: %(default)s)")
    parser.add_argument("--cpu", action="store_true", help="even where there is a GPU")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="glue: %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    settings = {
        key: str(value) if isinstance(value, Path) else value
        for key, value in vars(args).items() if key not in ("output", "key_dims", "cpu")
    }  # fmt: skip
    try:
        check_settings(Path(args.output), settings)
        record = Study(args).run()
    except (DataError, ReparamError, OSError) as error:
        logger.error("error: %s", " ".join(str(error).split()))
        return 1
    write_json(record, Path(args.output) / "record.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
