"""The analyses of `collab heads`, one function each: load the model, analyse it, print the report, draw the figure."""

import argparse
import os
import sys
from functools import partial
from typing import Any, Callable, Dict, List, Tuple

from collab_fairseq import checkpoints
from collab_fairseq.heads import ablation, attention_hooks, huggingface, pruning, removal
from collab_fairseq.heads import importance as head_importance
from collab_fairseq.heads import redundancy as head_redundancy
from collab_fairseq.heads import roles as head_roles
from collab_fairseq.heads.ablation import TestSet
from collab_fairseq.heads.record import new_record, settings_of_tests, text_setting
from collab_fairseq.modules.head_names import parse_heads
from collab_fairseq.modules.sites import attention_layers
from collab_fairseq.records.record import Record
from collab_fairseq.scoring.significance import METHOD
from collab_fairseq.translation import TrainedModel, check_references, load_model
from collab_fairseq.translation.text import dataset
from fairseq_modern.errors import UserError

from .options import choose_device, command, references, reject_flags

FAIRSEQ_FLAGS = ("data", "split", "reference", "form", "max_tokens")
HUGGINGFACE_FLAGS = ("text", "fields", "label", "batch_size")


def redundancy(args: argparse.Namespace) -> None:
    if os.path.isdir(args.checkpoint):
        weights = huggingface.read_weights(args.checkpoint)
    else:
        weights = head_redundancy.read_weights(checkpoints.load_with_model(args.checkpoint))
    record = _record(args, "redundancy", {})
    layers = {}
    for layer_id, factors in weights.items():
        layers[layer_id] = record.part(layer_id, partial(head_redundancy.redundancy, factors))
    _show(args, head_redundancy.report(layers), partial(head_redundancy.draw, layers))


def importance(args: argparse.Namespace) -> None:
    compute: Callable[[], Dict[str, Any]]
    if _is_huggingface(args):
        loaded = _load_huggingface(args)
        record = _record(args, "importance", _labelled_text_settings(args), loaded.model.device)
        compute = partial(huggingface.importance, loaded)
        available = loaded.available
    else:
        trained = _load(args, args.checkpoint)
        settings = {**text_setting(trained, args.split, args.sentences), "form": args.form}
        record = _record(args, "importance", settings, trained.device)
        tokens = args.form == "token"
        compute = partial(head_importance.importance, trained, args.split, tokens=tokens, **_batching(args))
        available = len(dataset(trained, args.split))
    result = record.part("importance", compute)
    _show(args, head_importance.report(result, available), partial(head_importance.draw, result))


def ablate(args: argparse.Namespace) -> None:
    modes = list(ablation.MODES) if args.mode == "both" else [args.mode]
    if _is_huggingface(args):
        splits = ["text"]
        loaded = _load_huggingface(args)
        sites = attention_hooks.sites_of(args.sites, loaded.layers)
        record = _record(args, "ablate", _labelled_test_settings(args, loaded), loaded.model.device)
        huggingface.ablate(loaded, record, **_search(args), modes=modes, sites=sites)
    else:
        tests = _tests(args)
        splits = [test.split for test in tests]
        trained = _load(args, args.checkpoint)
        check_references(trained, references(args.reference), args.sentences)
        sites = attention_hooks.sites_of(args.sites, attention_layers(trained.model))
        record = _record(args, "ablate", settings_of_tests(trained, tests), trained.device)
        ablation.ablate(trained, tests, record, modes=modes, sites=sites)
    reports = [ablation.report(record.parts, splits, mode) for mode in modes]
    _show(args, "".join(reports), partial(ablation.draw, record.content))


def prune(args: argparse.Namespace) -> None:
    if (args.remove is None) != (args.output is None):
        raise UserError("--remove and --output go together; the record of a measurement is written to --json")
    if len(args.checkpoint) > 1:
        reject_flags(args, ("importance", "remove"), "applies to a single checkpoint")
    if args.remove is None:
        reject_flags(args, ("empty_layers",), "needs --remove")
        _measure_pruning(args)
    else:
        measurement = ("reference", "beam", "lenpen", "by_site", "random_orders", "json", "figure", *HUGGINGFACE_FLAGS)
        reject_flags(args, measurement, "applies to measurements and not to --remove")
        if os.path.isdir(args.checkpoint[0]):
            raise UserError(f"--remove needs a fairseq checkpoint; got the folder {args.checkpoint[0]}")
        _remove(args)


def _measure_pruning(args: argparse.Namespace) -> None:
    names = [os.path.basename(path) for path in args.checkpoint]
    if len(set(names)) < len(names):
        raise UserError(f"several checkpoints must have different file names; got {', '.join(names)}")
    if _is_huggingface(args):
        record, curves = _prune_huggingface(args)
        splits = ["text"]
    else:
        record, curves = _prune_fairseq(args, names)
        splits = [split for split, _ in args.reference]
    _show(args, pruning.report(record.parts, curves, splits), partial(pruning.draw, record.content))


def _prune_huggingface(args: argparse.Namespace) -> Tuple[Record, List[str]]:
    """The record, and the names of its curves."""
    loaded = _load_huggingface(args)
    settings = {**_labelled_test_settings(args, loaded), "ranking": args.ranking, "loss": "text"}
    if args.importance:
        settings["importance"] = checkpoints.file_setting(args.importance)
    sites = attention_hooks.sites_of(args.sites, loaded.layers)
    record = _record(args, "prune", settings, loaded.model.device)
    ranks = record.part("importance", partial(_ranks, args, lambda: huggingface.importance(loaded)))
    orders = _orders(args, sites, ranks)
    huggingface.prune(loaded, orders, record, **_search(args))
    return record, list(orders)


def _prune_fairseq(args: argparse.Namespace, names: List[str]) -> Tuple[Record, List[str]]:
    """The record, and the names of its curves."""
    tests = _tests(args)
    models = [_load(args, path) for path in args.checkpoint]
    for trained in models:
        check_references(trained, references(args.reference), args.sentences)
        sites = attention_hooks.sites_of(args.sites, attention_layers(trained.model))
        dataset(trained, args.split)  # raises an error if there is none
    texts = [text_setting(trained, args.split, args.sentences) for trained in models]
    if any(text != texts[0] for text in texts):
        raise UserError(f"several checkpoints must have the same split {args.split}; got others: give --data")
    record: Any = None
    curves = []
    for trained, name in zip(models, names, strict=True):
        if record is None:
            settings: Dict[str, Any] = {}
            if args.importance:
                settings["importance"] = checkpoints.file_setting(args.importance)
                settings["loss_text"] = text_setting(trained, args.split, None)
            else:
                settings["importance_text"] = text_setting(trained, args.split, args.sentences)
            settings.update(settings_of_tests(trained, tests), ranking=args.ranking, loss=args.split)
            record = _record(args, "prune", settings, trained.device)
        prefix = f"{name}/" if len(names) > 1 else ""
        orders = _orders(args, sites, record.part(f"{prefix}importance", partial(_importance, args, trained)))
        pruning.prune(trained, orders, record, tests=tests, loss_split=args.split, prefix=prefix)
        curves += [prefix + order for order in orders]
    return record, curves


def _orders(args: argparse.Namespace, sites: List[str], ranks: Dict[str, float]) -> Dict[str, List[str]]:
    """Name of a curve → heads in the order in which they are masked."""
    groups = {"_".join(sites): sites}
    if args.by_site:
        groups.update({site: [site] for site in sites})
    orders = {group: pruning.by_ascending_importance(ranks, group_sites) for group, group_sites in groups.items()}
    random_orders = pruning.random_orders(orders["_".join(sites)], args.random_orders)
    return {**{group: order for group, order in orders.items() if order}, **random_orders}


def _importance(args: argparse.Namespace, trained: TrainedModel) -> Dict[str, float]:
    """Head → importance: read from --importance, or computed on --split."""
    return _ranks(args, lambda: head_importance.importance(trained, args.split, **_batching(args)))


def _ranks(args: argparse.Namespace, compute: Callable[[], Dict[str, Any]]) -> Dict[str, float]:
    if args.importance:
        return head_importance.read(args.importance, args.ranking, args.checkpoint[0])
    return {head: values[args.ranking] for head, values in compute()["heads"].items()}


def _remove(args: argparse.Namespace) -> None:
    """Remove the heads of --remove, a percentage or names, from the checkpoint."""
    checkpoint = args.checkpoint[0]
    try:
        percent = float(args.remove)
    except ValueError:
        ranked = ("importance", "ranking", "split", "sentences", "sites", "data", "max_tokens", "device", "threads")
        reject_flags(args, ranked, "applies to --remove PERCENT and not to named heads")
        heads = parse_heads(args.remove)
        state = checkpoints.load_with_model(checkpoint)
    else:
        if not 0 < percent < 100:
            raise UserError(f"--remove must be names of heads or a percentage between 0 and 100; got {args.remove}")
        trained = _load(args, checkpoint)
        layers = attention_layers(trained.model)
        sites = attention_hooks.sites_of(args.sites, layers)
        removal.check_separate({name: layer for name, layer in layers.items() if name.split(".")[0] in sites})
        ranking = pruning.by_ascending_importance(_importance(args, trained), sites)
        heads = pruning.least_important(ranking, percent)
        state = trained.state
    _save(args, removal.remove_heads(state, heads, empty_layers=args.empty_layers))


def _save(args: argparse.Namespace, result: removal.Removal) -> None:
    checkpoints.save(result.state, args.output)
    sys.stdout.write(f"{result.report()}{args.output}\n")


def gates(args: argparse.Namespace) -> None:
    if not args.output:
        reject_flags(args, ("empty_layers",), "needs --output")
    state = checkpoints.load_with_model(args.checkpoint)
    head_gates = removal.read_gates(state)
    values = {head: gate._asdict() for head, gate in head_gates.items()}
    _record(args, "gates", {}).part("gates", lambda: values)
    _show(args, removal.gates_report(head_gates), partial(removal.draw_gates, head_gates))
    if args.output:
        _save(args, removal.remove_closed_heads(state, empty_layers=args.empty_layers))


def roles(args: argparse.Namespace) -> None:
    if args.relevance_sentences < 0:
        raise UserError(f"--relevance-sentences must not be negative; got {args.relevance_sentences}")
    ranks = head_importance.read(args.importance, "normalised", args.checkpoint) if args.importance else {}
    trained = _load(args, args.checkpoint)
    settings = text_setting(trained, args.split, args.sentences)
    settings["relevance_sentences"] = args.relevance_sentences
    if args.parses:
        settings["parses"] = checkpoints.file_setting(args.parses)
    record = _record(args, "roles", settings, trained.device)
    options = {"parses": args.parses, "relevance_sentences": args.relevance_sentences}
    head_roles.measure(trained, args.split, record, **options, **_batching(args))
    _show(args, head_roles.report(record.parts, ranks), partial(head_roles.draw, record.parts))


def _is_huggingface(args: argparse.Namespace) -> bool:
    """Whether CHECKPOINT is a Hugging Face model folder; flags of the other format raise a UserError."""
    folders = [path for path in args.checkpoints if os.path.isdir(path)]
    if not folders:
        path = args.checkpoints[0]
        reject_flags(args, HUGGINGFACE_FLAGS, f"needs a Hugging Face model folder; {path} is not a folder")
        return False
    if len(args.checkpoints) > 1:
        raise UserError(f"a Hugging Face model must be the only model; got {', '.join(args.checkpoints)}")
    if args.text is None:
        raise UserError(f"{folders[0]} is a folder, but not of `collab export --to folder`: it needs --text FILE.jsonl")
    reject_flags(args, FAIRSEQ_FLAGS, "applies to fairseq checkpoints; Hugging Face model folders take --text")
    return True


def _load(args: argparse.Namespace, checkpoint: str) -> TrainedModel:
    return load_model(checkpoint, args.data, device=choose_device(args))


def _load_huggingface(args: argparse.Namespace) -> huggingface.Loaded:
    return huggingface.load(
        args.checkpoints[0],
        args.text,
        args.fields.split(","),
        args.label,
        sentences=args.sentences,
        batch_size=args.batch_size,
        device=choose_device(args),
    )


def _tests(args: argparse.Namespace) -> List[TestSet]:
    if not args.reference:
        raise UserError("--reference SPLIT=FILE is needed, such as test=test.de: a test split and its raw references")
    search = {**_search(args), **_batching(args)}
    return [TestSet(split, file, search) for split, file in references(args.reference).items()]


def _search(args: argparse.Namespace) -> Dict[str, Any]:
    return {"beam": args.beam, "lenpen": args.lenpen}


def _batching(args: argparse.Namespace) -> Dict[str, Any]:
    return {"max_tokens": args.max_tokens, "sentences": args.sentences}


def _labelled_text_settings(args: argparse.Namespace) -> Dict[str, Any]:
    text = checkpoints.file_setting(args.text)
    return {"text": text, "fields": args.fields, "label": args.label, "sentences": args.sentences}


def _labelled_test_settings(args: argparse.Namespace, loaded: huggingface.Loaded) -> Dict[str, Any]:
    """The text and, of a translation model, the search; flags of the search raise a UserError for a classifier."""
    huggingface.evaluation(loaded)  # raises an error for models without a score
    if huggingface.translates(loaded.model):
        return {**_labelled_text_settings(args), "search": _search(args), "p": METHOD}
    reject_flags(args, ("beam", "lenpen"), "applies to translation models; this model is a classifier")
    return _labelled_text_settings(args)


def _record(args: argparse.Namespace, name: str, settings: Dict[str, Any], device: Any = "cpu") -> Record:
    command_line = getattr(args, "command_line", None) or command()  # recipes call subcommands in their own process
    return new_record(name, command_line, args.checkpoints, settings, args.json, device)


def _show(args: argparse.Namespace, report: str, draw: Callable[[str, str], None]) -> None:
    """Print the report; draw --figure, titled with the names of the checkpoints."""
    sys.stdout.write(report)
    if args.figure:
        names = [os.path.basename(os.path.normpath(path)) for path in args.checkpoints]
        draw(args.figure, ", ".join(names))
