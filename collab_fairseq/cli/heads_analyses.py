"""The analyses of `collab heads`, one function each: load the model, analyse it, print the report, draw the figure."""

import argparse
import os
import sys
from functools import partial
from typing import Any, Callable, Dict, List

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
        loaded = _load_huggingface(args)
        model = huggingface.evaluated(loaded, **_search(args))
        settings, device = _labelled_test_settings(args, loaded), loaded.model.device
    else:
        tests = _tests(args)
        trained = _load(args, args.checkpoint)
        check_references(trained, references(args.reference), args.sentences)
        model = ablation.evaluated(trained, tests)
        settings, device = settings_of_tests(trained, tests), trained.device
    sites = attention_hooks.sites_of(args.sites, model.layers)
    record = _record(args, "ablate", settings, device)
    ablation.ablate(record, model, modes=modes, sites=sites)
    reports = [ablation.report(record.parts, list(model.tests), mode) for mode in modes]
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
        loaded = _load_huggingface(args)
        models = [(huggingface.evaluated(loaded, **_search(args)), partial(huggingface.importance, loaded))]
        settings = {**_labelled_test_settings(args, loaded), "loss": "text"}
        device = loaded.model.device
    else:
        tests = _tests(args)
        checkpoint_models = [_load(args, path) for path in args.checkpoint]
        for trained in checkpoint_models:
            check_references(trained, references(args.reference), args.sentences)
            dataset(trained, args.split)  # raises an error if there is none
        texts = [text_setting(trained, args.split, args.sentences) for trained in checkpoint_models]
        if any(text != texts[0] for text in texts):
            raise UserError(f"several checkpoints must have the same split {args.split}; got others: give --data")
        trained = checkpoint_models[0]
        settings = {**settings_of_tests(trained, tests), "loss": args.split}
        if args.importance:
            settings["loss_text"] = text_setting(trained, args.split, None)
        else:
            settings["importance_text"] = texts[0]
        device = trained.device
        models = [(ablation.evaluated(each, tests, args.split), _importance(args, each)) for each in checkpoint_models]
    settings["ranking"] = args.ranking
    if args.importance:
        settings["importance"] = checkpoints.file_setting(args.importance)
    for model, _ in models:
        sites = attention_hooks.sites_of(args.sites, model.layers)
    record = _record(args, "prune", settings, device)
    curves = []
    for name, (model, compute) in zip(names, models, strict=True):
        prefix = f"{name}/" if len(names) > 1 else ""
        orders = _orders(args, sites, record.part(f"{prefix}importance", partial(_ranks, args, compute)))
        pruning.prune(record, orders, model, prefix)
        curves += [prefix + order for order in orders]
    report = pruning.report(record.parts, curves, list(models[0][0].tests))
    _show(args, report, partial(pruning.draw, record.content))


def _orders(args: argparse.Namespace, sites: List[str], ranks: Dict[str, float]) -> Dict[str, List[str]]:
    """Name of a curve → heads in the order in which they are masked."""
    groups = {"_".join(sites): sites}
    if args.by_site:
        groups.update({site: [site] for site in sites})
    orders = {group: pruning.by_ascending_importance(ranks, group_sites) for group, group_sites in groups.items()}
    random_orders = pruning.random_orders(orders["_".join(sites)], args.random_orders)
    return {**{group: order for group, order in orders.items() if order}, **random_orders}


def _importance(args: argparse.Namespace, trained: TrainedModel) -> "partial[Dict[str, Any]]":
    """Computes the importance on --split."""
    return partial(head_importance.importance, trained, args.split, **_batching(args))


def _ranks(args: argparse.Namespace, compute: Callable[[], Dict[str, Any]]) -> Dict[str, float]:
    """Head → importance: read from --importance, or computed."""
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
        ranking = pruning.by_ascending_importance(_ranks(args, _importance(args, trained)), sites)
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
