"""The analyses of `collab heads`, one function each. Its docstring is the description of the subcommand."""

import argparse
import os
import sys
from functools import partial
from typing import Any, Callable, Dict

from . import heads_options as shared
from . import options


def redundancy(args: argparse.Namespace) -> None:
    """What heads share: captured energy of W_Q, W_K and W_Q W_K', by head and layer (Cordonnier et al. 2020, Figure 1).

        collab heads redundancy averaged.pt --figure redundancy.svg --json redundancy.json

    Printed: how many principal components hold 90, 95 and 99 % of the energy, in the layer as a whole and in the mean
    head. The record also has the cosines of collaborative heads' mixing vectors, and how many dimensions each head
    uses. A folder instead of a checkpoint is a Hugging Face model of an architecture that collab_fairseq.huggingface
    knows.
    """
    from collab_fairseq import checkpoints
    from collab_fairseq.heads import huggingface, redundancy

    if os.path.isdir(args.checkpoint):
        weights = huggingface.read_weights(args.checkpoint)
    else:
        weights = redundancy.read_weights(checkpoints.load_with_model(args.checkpoint))
    record = shared.make_record(args, "redundancy", {})
    for layer_id, heads in weights.items():
        record.part(layer_id, partial(redundancy.redundancy, heads))
    layers = {layer_id: record.parts[layer_id] for layer_id in weights}
    shared.show(args, redundancy.report(layers), partial(redundancy.draw, layers))


def importance(args: argparse.Namespace) -> None:
    """Head importance: sensitivity of the loss to each head, |∂L/∂ξ_h| of a multiplier on it (Michel et al. 2019).

        collab heads importance averaged.pt --data data-bin --json importance.json --figure importance.svg
        collab heads importance my-bert --text mnli.jsonl --fields premise,hypothesis   # a Hugging Face model

    --form sentence is the paper's (the gradient of a sentence, then the absolute value), --form token that of its
    authors' code (the absolute value of every token's part). Values are divided by their ℓ2 norm over the heads of a
    layer.
    """
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise options.UserError("importance is computed by one process: start it without torchrun")
    from collab_fairseq.heads import huggingface, importance

    compute: Callable[[], Dict[str, Any]]
    if shared.is_folder(args):
        loaded, settings = shared.load_folder(args)
        device = loaded.model.device
        compute = partial(huggingface.importance, loaded.model, loaded.layers, loaded.batches)
    else:
        trained = shared.load(args)
        settings, device = {**shared.data_setting(args, trained), "form": args.form}, trained.device
        text = {"max_tokens": args.max_tokens, "sentences": args.sentences}
        compute = partial(importance.importance, trained, args.split, tokens=args.form == "token", **text)
    result = shared.make_record(args, "importance", settings, device).part("importance", compute)
    shared.show(args, importance.report(result), partial(importance.draw, result))


def ablate(args: argparse.Namespace) -> None:
    """BLEU without each head, and with each head alone in its layer, with significance (Michel et al. 2019).

        collab heads ablate averaged.pt --data data-bin --reference test=raw/test_2016_flickr.de \\
            --reference test1=raw/test_2017_flickr.de --json ablation.json --figure ablation.svg

    The differences come with the p of a paired bootstrap. With two test sets their correlation is printed: Michel et
    al. compare newstest2013 with MTNT, where data-bin has them as test and test1:
    --reference test=newstest2013.fr --reference test1=mtnt.fr. The figure shows the first test set; a frame: p < 0.05.

        collab heads ablate my-bert --text mnli.jsonl --fields premise,hypothesis         # a Hugging Face model

    For a classifier accuracy and McNemar's exact test take the place of BLEU and the bootstrap.
    """
    from collab_fairseq.heads import ablation, attention_hooks, huggingface
    from collab_fairseq.scoring.significance import METHOD

    modes = list(ablation.MODES) if args.mode == "both" else [args.mode]
    heads: Dict[str, Any] = {"modes": modes, "sites": attention_hooks.sites(args.sites)}
    if shared.is_folder(args):
        loaded, settings = shared.load_folder(args)
        splits, search = ["text"], {"beam": args.beam, "lenpen": args.lenpen}
        if huggingface.translates(loaded.model):
            settings.update(search=search, p=METHOD)
        else:
            options.refuse(args, ("beam", "lenpen"), "is for models that translate, this one classifies")
        record = shared.make_record(args, "ablate", settings, loaded.model.device)
        huggingface.ablate(loaded, record, **search, **heads)
    else:
        tests = shared.read_tests(args)
        splits = [test.split for test in tests]
        trained = shared.load(args)
        record = shared.make_record(args, "ablate", shared.test_settings(args, trained), trained.device)
        ablation.ablate(trained, tests, record, **heads)
    text = "".join(ablation.report(record.parts, splits, mode) for mode in modes)
    shared.show(args, text, partial(ablation.draw, record.content))


def prune(args: argparse.Namespace) -> None:
    """BLEU and loss as ever more heads go, least important first (Michel et al. 2019); --remove makes the cut real.

        collab heads prune averaged.pt --data data-bin --reference test=test.de --json pruning.json --figure pruning.svg
        collab heads prune checkpoints/checkpoint{1,2,5,10}.pt --reference test=test.de --figure when.svg     # and when
        collab heads prune averaged.pt --remove 40 --output pruned.pt                             # percent, or heads:
        collab heads prune averaged.pt --remove 'E:1:3,5 A:2:1' --output pruned.pt

    Importance is that of `collab heads importance` on --split, or read from its result (--importance). It is divided by
    its norm over the heads of a layer, as in the paper; with --ranking raw it is not, and whole layers that matter
    little go first. --by-site adds a curve for each attention site alone. Several checkpoints of a training run have a
    curve each.

    --remove writes a smaller checkpoint that translates as the masked model does. fairseq-generate and the other tools
    take it with --user-dir; fairseq-train continues training it with --attention-from pruned.pt
    --finetune-from-model pruned.pt and the flags of the source's layers, widths and heads.
    """
    if (args.remove is None) != (args.output is None):
        raise options.UserError("--remove and --output go together; the record of a measurement goes to --json")
    if len(args.checkpoint) > 1:
        options.refuse(args, ("importance", "remove"), "is for one checkpoint")
    if args.remove is None:
        options.refuse(args, ("empty_layers",), "needs --remove")
        _measure_pruning(args)
    else:
        measuring = ("reference", "beam", "lenpen", "by_site", "json", "figure")
        options.refuse(args, measuring, "is of a measurement, and --remove measures nothing")
        _remove(args)


def _importance(args: argparse.Namespace, trained: Any) -> Dict[str, float]:
    """Head → importance as in --ranking, read or computed."""
    from collab_fairseq.heads import importance

    if args.importance:
        return importance.read(args.importance, args.ranking, args.checkpoint[0])
    measured = importance.importance(trained, args.split, max_tokens=args.max_tokens, sentences=args.sentences)
    return {head: values[args.ranking] for head, values in measured["heads"].items()}


def _measure_pruning(args: argparse.Namespace) -> None:
    """One checkpoint, or several."""
    from collab_fairseq.heads import attention_hooks, pruning

    sites = attention_hooks.sites(args.sites)
    tests = shared.read_tests(args)
    names = [os.path.basename(path) for path in args.checkpoint]
    if len(set(names)) < len(names):
        raise options.UserError("several checkpoints must have different file names")
    groups = {"_".join(sites): sites}
    if args.by_site:
        groups.update({site: [site] for site in sites})
    record: Any = None
    measured = []
    for path, name in zip(args.checkpoint, names, strict=True):
        trained = shared.load(args, path)
        if record is None:
            source = {} if args.importance else {"importance_text": shared.data_setting(args, trained)}
            settings = {**source, **shared.test_settings(args, trained), "ranking": args.ranking, "loss": args.split}
            record = shared.make_record(args, "prune", settings, trained.device)
        prefix = f"{name}/" if len(names) > 1 else ""
        with record.within(prefix):  # each checkpoint has its own parts, the unpruned model's scores included
            ranks = record.part("importance", partial(_importance, args, trained))
            for group, chosen in groups.items():
                pruning.prune(trained, ranks, record, group, sites=chosen, tests=tests, loss_split=args.split)
                measured.append(prefix + group)
    splits = [test.split for test in tests]
    text = pruning.report(record.parts, measured, splits)
    shared.show(args, text, partial(pruning.draw, record.content))


def _remove(args: argparse.Namespace) -> None:
    from collab_fairseq import checkpoints
    from collab_fairseq.heads import attention_hooks, pruning, removal

    heads: Any = args.remove
    try:
        percent = float(heads)
    except ValueError:
        measured = ("importance", "ranking", "split", "sentences", "sites", "data", "max_tokens", "device", "threads")
        options.refuse(args, measured, "is for --remove PERCENT, the heads are named")
        state = checkpoints.load_with_model(args.checkpoint[0])
    else:
        if not 0 < percent < 100:
            raise options.UserError(f"--remove takes heads, or per cent of them between 0 and 100, got {heads}")
        sites, trained = attention_hooks.sites(args.sites), shared.load(args)
        heads = pruning.least(pruning.ascending(_importance(args, trained), sites), percent)
        state = trained.state
    _save(args, removal.remove_heads(state, heads, empty_layers=args.empty_layers))


def _save(args: argparse.Namespace, result: Any) -> None:
    """Write the smaller checkpoint to --output."""
    from collab_fairseq import checkpoints

    checkpoints.save(result.state, args.output)
    sys.stdout.write(f"{result.report()}{args.output}\n")


def gates(args: argparse.Namespace) -> None:
    """Heads that stochastic gates have closed, and the model without them (Voita et al. 2019).

        fairseq-train DATA --user-dir "$(collab user-dir)" --arch transformer_collab … \\
            --finetune-from-model averaged.pt --head-gates encoder_cross_decoder \\
            --criterion label_smoothed_cross_entropy_with_gates --gate-penalty 0.02
        collab heads gates checkpoint_last.pt                             # log alpha and P(open) of every head
        collab heads gates checkpoint_last.pt --output pruned.pt          # without gates and closed heads

    A gate is open where log alpha > 0. The finalised model computes exactly what the gated one does in evaluation;
    training continues from it as from one of `collab heads prune --remove`.
    """
    if not args.output:
        options.refuse(args, ("empty_layers",), "needs --output")
    import collab_fairseq.models  # noqa: F401  (so that fairseq knows the presets' names)
    from collab_fairseq import checkpoints
    from collab_fairseq.heads import removal

    state = checkpoints.load_with_model(args.checkpoint)
    gates = removal.read_gates(state)
    shared.make_record(args, "gates", {}).part("gates", lambda: {head: gate._asdict() for head, gate in gates.items()})
    shared.show(args, removal.gates_report(gates), partial(removal.draw_gates, gates))
    if args.output:
        _save(args, removal.finalise(state, empty_layers=args.empty_layers))


def roles(args: argparse.Namespace) -> None:
    """What heads do: confidence, positions, rare words, syntax, relevance (Voita et al. 2019).

        collab heads roles averaged.pt --data data-bin --split valid --json roles.json
        collab heads roles averaged.pt --data data-bin --parses valid.conllu --importance importance.json

    --parses: CoNLL-U of any parser, sentence i for line i of the split's source text; as many as there are, from the
    first. Relevance is layer-wise relevance propagation from the largest logit to the heads of the encoder. It takes
    one backward pass for every target position: --relevance-sentences limits it.
    """
    if args.relevance_sentences < 0:
        raise options.UserError(f"--relevance-sentences must not be negative, got {args.relevance_sentences}")
    trained = shared.load(args)
    from collab_fairseq.checkpoints import file_setting
    from collab_fairseq.heads import importance, roles

    settings = {**shared.data_setting(args, trained), "relevance_sentences": args.relevance_sentences}
    if args.parses:
        settings["parses"] = file_setting(args.parses)
    record = shared.make_record(args, "roles", settings, trained.device)
    measured = {"parses": args.parses, "relevance_sentences": args.relevance_sentences}
    text = {"max_tokens": args.max_tokens, "sentences": args.sentences}
    roles.measure(trained, args.split, record, **measured, **text)
    ranks = importance.read(args.importance, "normalised") if args.importance else {}
    shared.show(args, roles.report(record.parts, ranks), partial(roles.draw, record.parts))
