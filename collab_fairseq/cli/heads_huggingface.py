"""What `collab heads importance` and `ablate` do with a Hugging Face model's folder in place of a checkpoint."""

import argparse
import logging
import os
from typing import Any, Dict, List, NamedTuple

from collab_fairseq.cli.heads_options import UsageError, choose_device, make_record, positive

logger = logging.getLogger(__name__)

#: flags of fairseq's models that mean nothing here, and what they are unless given
_FAIRSEQ_ONLY: Dict[str, Any] = {"data": None, "criterion": None, "form": "sentence", "split": "valid", "test": []}


class Loaded(NamedTuple):
    """A model, its tokenizer, the places of its heads, its text, and that text in batches."""

    model: Any
    tokenizer: Any
    places: Dict[str, Any]
    examples: List[Any]
    batches: List[Any]


def add_text(parser: argparse.ArgumentParser) -> None:
    """Labelled text for a folder."""
    group = parser.add_argument_group("a Hugging Face model's folder in place of CHECKPOINT")
    group.add_argument("--text", metavar="FILE.jsonl", help="examples: JSON objects, one a line")
    group.add_argument(
        "--fields", default="text", metavar="NAME[,NAME]", help="of its one or two texts (default: text)"
    )
    group.add_argument(
        "--label", default="label", metavar="NAME", help="of its labels, or of the translations (default: label)"
    )
    group.add_argument("--batch-size", type=positive, default=32, metavar="N", help="examples per batch (default: 32)")


def is_folder(args: argparse.Namespace) -> bool:
    """Whether a Hugging Face model was given; flags that belong to the other kind of model are refused."""
    folder = os.path.isdir(args.checkpoint)
    if not folder and args.text is not None:
        raise UsageError(f"--text is for a Hugging Face model's folder, but {args.checkpoint} is none")
    if folder:
        if args.text is None:
            raise UsageError(f"{args.checkpoint} is a folder, so a Hugging Face model, and needs --text FILE.jsonl")
        for name, default in _FAIRSEQ_ONLY.items():
            if getattr(args, name, default) != default:
                raise UsageError(f"--{name} is for checkpoints of fairseq; a Hugging Face model's folder takes --text")
    return folder


def load_model(path: str) -> Any:
    """The model of a folder, of the class that it was saved as, and the module that knows its heads.

    Raises:
        UsageError: transformers is not installed. CheckpointError: parameters that are not finite.
    """
    try:
        import transformers

        from collab_fairseq.checkpoints import check_finite
        from collab_fairseq.reparam import huggingface
    except ImportError as error:
        raise UsageError(
            f"{path} is a folder, so a Hugging Face model, and these need transformers: "
            "install this project with its extra `huggingface`"
        ) from error
    config = transformers.AutoConfig.from_pretrained(path, local_files_only=True)
    if type(config) in huggingface.CONFIGS.values():
        model = huggingface.from_pretrained(path, local_files_only=True)
    else:
        kind = getattr(transformers, (config.architectures or [""])[0], transformers.AutoModel)
        model = kind.from_pretrained(path, local_files_only=True)
        huggingface.check_convertible(model)
    check_finite(dict(model.named_parameters()), path)
    return model, huggingface


def load(args: argparse.Namespace) -> Loaded:
    """Everything that the options name.

    Raises:
        UsageError: a model that neither classifies nor translates.
    """
    device = choose_device(args)
    model, known = load_model(args.checkpoint)
    from transformers import AutoTokenizer

    from collab_fairseq.heads import huggingface

    if not (huggingface.translates(model) or type(model).__name__.endswith("ForSequenceClassification")):
        raise UsageError(
            f"{args.checkpoint} holds a {type(model).__name__}, expected a model for sequence classification or "
            "translation, whose loss on a text is known from its label"
        )
    tokenizer = AutoTokenizer.from_pretrained(args.checkpoint, local_files_only=True)
    model.to(device)
    examples = huggingface.read_examples(args.text, args.fields.split(","), args.label, args.sentences)
    batches = list(huggingface.encode(model, tokenizer, examples, args.batch_size))
    return Loaded(model, tokenizer, known.head_places(model), examples, batches)


def record_of(args: argparse.Namespace, name: str, loaded: Loaded, **settings: Any) -> Any:
    """The result's record, with the text among the settings."""
    from collab_fairseq.checkpoints import file_setting

    text = {"text": file_setting(args.text), "fields": args.fields, "label": args.label, "sentences": args.sentences}
    return make_record(args, name, {**text, **settings}, str(loaded.model.device))


def importance(args: argparse.Namespace) -> Dict[str, Any]:
    """The part ``importance`` of a record."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError("several processes are for checkpoints of fairseq; a Hugging Face model takes one")
    from collab_fairseq.heads import huggingface
    from collab_fairseq.heads.importance import as_json

    loaded = load(args)

    def compute() -> Any:
        def progress(done: int) -> None:
            logger.info("%d sentences", done)

        return as_json(huggingface.importance(loaded.model, loaded.places, loaded.batches, progress))

    result: Dict[str, Any] = record_of(args, "importance", loaded).part("importance", compute)
    return result


def ablate(args: argparse.Namespace, modes: Any, sites: Any, progress: Any) -> Any:
    """The record of an ablation; its one test set is called ``text``."""
    from collab_fairseq.heads import ablation, evaluation, huggingface

    loaded = load(args)
    model, tokenizer, places, examples, batches = loaded
    counts = {name: place.num_heads for name, place in places.items()}
    if huggingface.translates(model):
        search = {"beam": args.beam, "lenpen": args.lenpen}
        record = record_of(args, "ablate", loaded, search=search, samples=args.samples)

        def translate(heads: Any = None) -> Any:
            found = huggingface.translations(model, tokenizer, places, batches, heads, **search)
            return evaluation.score(found, [example.label for example in examples], None)

        whole = evaluation.Result(**record.part("whole/text", lambda: translate()._asdict()))

        def measure(heads: Any) -> Dict[str, Any]:
            result = translate(heads)
            return evaluation.as_json(evaluation.compare(result, whole, args.samples), result.score)
    else:
        if model.config.num_labels == 1:
            raise UsageError(f"{args.checkpoint} predicts a number, but accuracy needs two or more classes")
        record = record_of(args, "ablate", loaded)

        def right(heads: Any = None) -> List[bool]:
            found = huggingface.answers(model, places, batches, heads)
            return [answer == example.label for answer, example in zip(found, examples, strict=True)]

        def all_heads() -> Dict[str, Any]:
            found = right()
            return {"score": 100 * sum(found) / len(found), "right": "".join("01"[one] for one in found)}

        before = [mark == "1" for mark in record.part("whole/text", all_heads)["right"]]

        def measure(heads: Any) -> Dict[str, Any]:
            return huggingface.compare_answers(right(heads), before)

    ablation.measure_all(record, "text", counts, measure, modes=modes, sites=sites, progress=progress)
    return record
