"""Rows of tables: a row is a configuration, and its training runs differ in the seed only.

A `TrainingRecord` is one dictionary with the fields, settings and parts of a record, and the `path` of its file.
"""

import logging
import os
import re
from typing import Any, Dict, List, Optional, Sequence, Tuple

from collab_fairseq.attention import attention_types
from collab_fairseq.files import PathLike
from collab_fairseq.records.columns import DASH, GROUPING_FIELDS, NUMBERS
from collab_fairseq.records.record import load
from fairseq_modern.errors import UserError

logger = logging.getLogger(__name__)

TrainingRecord = Dict[str, Any]
#: settings of the model that :func:`heads` names
LABELS = {"value_heads": "{} value head{s}", "kv_heads": "{} key and value head{s}", "kv_latent_dim": "latent {}"}


def load_run(path: PathLike) -> TrainingRecord:
    """Read the record of a training run."""
    record = load(path, "training")
    return {**record, **record["settings"], **record["parts"], "path": os.fspath(path)}


def whole_model(run: TrainingRecord) -> Dict[str, Any]:
    """The settings of the model, where those of converted and pruned heads are as flags would give them."""
    model: Dict[str, Any] = run["config"]["model"]
    shapes = model.get("attention_shapes") or {}
    if shapes and all(shape.get("collaborative") for shape in shapes.values()):
        return {**model, **_converted(model, shapes)}
    if any({"num_heads", "key_dim"} & shape.keys() for shape in shapes.values()):
        return {**model, **dict.fromkeys(attention_types.KEY_DIM_SETTINGS.values()), "key_dim": "mixed"}
    return model


def _converted(model: Dict[str, Any], shapes: Dict[str, Dict[str, Any]]) -> Dict[str, Any]:
    """The settings of converted layers, as those of the whole model."""
    sites = [site for site in attention_types.SITES if any(layer_id.startswith(f"{site}.") for layer_id in shapes)]
    layers = sum(model[f"{attention_types.side_of(site)}_layers"] for site in sites)
    arguments = {"key_dim": "key_dim", **attention_types.CollaborativeAttention.settings}
    names = {argument: name for argument, name in arguments.items() if argument in attention_types.LAYER_SETTINGS}
    layers_settings = [{name: shape.get(argument) for argument, name in names.items()} for shape in shapes.values()]
    settings: Dict[str, Any] = {"collaborative_heads": "_".join(sites), "mixing_init": "converted"}
    dim: Any = "mixed"
    if len(shapes) == layers and all(layer == layers_settings[0] for layer in layers_settings):
        dim = layers_settings[0].pop("key_dim")
        settings.update(layers_settings[0], attention_shapes={})
    # the other sites keep the key dimension of the model
    return {**settings, **{attention_types.KEY_DIM_SETTINGS[site]: dim for site in sites}}


def lookup(run: TrainingRecord, field: str) -> Any:
    """The value at a path such as config.model.dropout; dictionaries and lists as text, a list of one as its item."""
    value: Any = run
    for part in field.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, list) and len(value) == 1:
        value = str(value[0])
    return str(value) if isinstance(value, (dict, list)) else value


def is_collaborative(run: TrainingRecord) -> bool:
    """Whether the attention of any site has collaborative heads."""
    return whole_model(run).get("collaborative_heads") not in (None, "none")


def heads(run: TrainingRecord) -> str:
    """The attention type of the model in words, and whether the result is from a publication."""
    model = whole_model(run)
    sites = model.get("collaborative_heads")
    named = [site for site in attention_types.SITES if site in attention_types.parse_sites(sites or "none")]
    words = []
    if not named:
        words.append("standard" if sites else "standard (fairseq's transformer)")
    else:
        everywhere = len(named) == len(attention_types.SITES)
        words.append("collaborative" if everywhere else f"collaborative in {', '.join(named)}")
        mixing = model.get("mixing_init")
        if mixing not in (None, "xavier"):
            words.append(mixing)
        rate = model.get("mixing_lr_multiplier")
        if rate not in (None, 1) and mixing != "converted":
            words.append(f"{rate:g}× learning rate on the mixing matrix")
    if model.get("attention_init") == "authors":
        words.append("authors' initialisation")
    factor = logits_factor(model)
    if factor != 1:
        words.append(f"attention logits × {factor:.3g}")
    if any("num_heads" in shape for shape in (model.get("attention_shapes") or {}).values()):
        words.append("pruned")
    if "recipe.training_module" in run.get("files", {}):
        words.append("trained with a different --user-dir")
    for field, label in LABELS.items():
        number = model.get(field)
        if number is not None:
            words.append(label.format(number, s="s" * (number != 1)))
    if "published" in run:
        words.append("as published")
    return ", ".join(words)


def logits_factor(model: Dict[str, Any]) -> float:
    """The factor on the default scale of the attention logits, (d_model / heads)^-0.5, if it is set for all layers."""
    shapes = list((model.get("attention_shapes") or {}).values())
    if not shapes or any(shape != shapes[0] or set(shape) != {"scale"} for shape in shapes):
        return 1.0
    head_dim = model["encoder_embed_dim"] / model["encoder_attention_heads"]
    return round(float(shapes[0]["scale"] * head_dim**0.5), 6)


def keys(run: TrainingRecord) -> Dict[str, Any]:
    """Fields that rows can be grouped by."""
    model = whole_model(run)
    dims = {site: key_dim(model, site) for site in attention_types.SITES}
    if len(set(dims.values())) == 1:
        shown = dims["encoder"]
    else:
        shown = ", ".join(f"{site} {dim}" for site, dim in dims.items())
    return {"heads": heads(run), "key_dim": shown, "updates": run["training"]["updates"], "averaged": averaged(run)}


def key_dim(model: Dict[str, Any], site: str) -> Any:
    """The key dimension of a site: its own, that of the model, or as in fairseq's transformer d_model."""
    width = model.get(f"{attention_types.side_of(site)}_embed_dim") or model.get("encoder_embed_dim")
    return model.get(f"{site}_key_dim") or model.get("key_dim") or width


def averaged(run: TrainingRecord) -> Optional[str]:
    """The number of averaged checkpoints, and whether they are those of epochs; None without averaging."""
    files = [entry["file"] for entry in run.get("averaged_from") or ()]
    kind = "epochs" if all(re.fullmatch(r"checkpoint\d+\.pt", file) for file in files) else "checkpoints"
    return f"{len(files)} {kind}" if files else None


def cache(run: TrainingRecord) -> Optional[int]:
    """Numbers that decoding stores per token and self-attention layer; None if layers differ."""
    model = whole_model(run)
    if None in (model.get("decoder_attention_heads"), model.get("decoder_embed_dim")) or model.get("attention_shapes"):
        return None
    return attention_types.kv_cache_per_token(attention_types.uninitialised_layer(model, "decoder"))


def losses(run: TrainingRecord) -> Dict[str, float]:
    """Validation set → loss of the last checkpoint (not of the average), unless it was not finite."""
    last = {name: curve[-1] for name, curve in sorted(run["curves"].items()) if curve and name != "train"}
    return {name: point["loss"] for name, point in last.items() if "loss" in point}


def numbers(run: TrainingRecord) -> Dict[str, Any]:
    """The numbers that are averaged over seeds; None if not measured."""
    training = run["training"]
    seconds = training["wall_seconds"]
    peak = training["peak_gpu_bytes" if run["hardware"]["device"] == "gpu" else "peak_memory_bytes"]
    return {
        "parameters": run["parameters"],
        "cache": cache(run),
        "valid_loss": losses(run).get("valid"),
        "words_per_second": training["words_per_second"],
        "wall_time": None if seconds is None else seconds / 3600,
        "peak_memory": None if peak is None else peak / 2**30,
    }


def hardware(run: TrainingRecord) -> str:
    """The GPUs, or the CPU and its threads, in words."""
    machine = run["hardware"]
    if machine["device"] == "gpu":
        names = [str(gpu["name"]) for gpu in machine["gpus"]]
        counts = {name: names.count(name) for name in names}  # keeps the order
        return ", ".join(name if n == 1 else f"{n} × {name}" for name, n in counts.items()) or "a GPU"
    threads = machine["threads"]
    number = "threads unknown" if threads is None else f"{threads} thread{'s' * (threads != 1)}"
    return f"{machine['cpu']}, {number}"


def precision(run: TrainingRecord) -> str:
    """The precision of training, as fairseq's flags."""
    settings = run["config"].get("common")
    if settings is None:
        return "not recorded"
    flags = [f"--{name.replace('_', '-')}" for name, value in settings.items() if value]
    # autocast uses bfloat16 on a CPU and float16 on a GPU
    return f"{' '.join(flags)} on a {run['hardware']['device'].upper()}" if flags else "fp32"


def text(value: Any) -> str:
    """The value of a field as a cell."""
    if value is None:
        return DASH
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value).replace("\n", " ")


def frame(runs: Sequence[TrainingRecord], group_by: Sequence[str]) -> Any:
    """A pandas DataFrame with one line per run, in an order that does not depend on that of ``runs``.

    Standard heads come first, then large numbers, then small seeds. Columns: run (the dictionary), name, seed, machine,
    precision, row (the texts of the fields of `group_by`, a tuple), these fields, `GROUPING_FIELDS` and `NUMBERS`.
    Lines with the same `row` are one row of a table.

    Raises:
        UserError: runs of a row have the same seed or different settings.
    """
    import pandas

    lines: List[Dict[str, Any]] = []
    for run in runs:
        line = {"run": run, "name": run["name"], "seed": run["seed"], "machine": hardware(run)}
        lines.append({**line, "precision": precision(run), **_fields(run, group_by), **numbers(run)})
    lines.sort(key=lambda line: ([_order(line[name]) for name in group_by], line["seed"] or 0, line["name"]))
    data = pandas.DataFrame(lines, dtype=object)
    for name in group_by:
        if name not in GROUPING_FIELDS and all(lookup(run, name) is None for run in runs):
            raise UserError(
                f"fields must be {', '.join(GROUPING_FIELDS)} or a path into a record such as config.model.dropout; "
                f"no record has {name}"
            )
    data[list(NUMBERS)] = data[list(NUMBERS)].astype(float)
    for _, row in data.groupby("row", sort=False):
        _check_row(row)
    return data


def _fields(run: TrainingRecord, group_by: Sequence[str]) -> Dict[str, Any]:
    fields = {**{name: lookup(run, name) for name in group_by}, **keys(run)}
    return {**fields, "row": tuple(text(fields[name]) for name in group_by)}


def distinguishing(runs: Sequence[TrainingRecord], group_by: Sequence[str]) -> List[str]:
    """`group_by`, and as few settings as are needed so that runs of the same seed are different rows."""
    rows: Dict[Any, List[TrainingRecord]] = {}
    for run in runs:
        rows.setdefault((run["seed"], _fields(run, group_by)["row"]), []).append(run)
    different = [name for row in rows.values() for name in _differences(row)]
    settings = [name for name in different if name.startswith("config.") and name not in group_by]
    if not settings:
        return list(group_by)
    # records of earlier versions lack some
    first = min(settings, key=lambda name: any(lookup(run, name) is None for run in runs))
    return distinguishing(runs, [*group_by, first])


def _order(value: Any) -> Tuple[int, float, bool, str]:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return (0, -value, False, "")
    # "standard" before "collaborative"
    return (1, 0.0, not str(value).startswith("standard"), str(value))


def _check_row(row: Any) -> None:
    """Check that the runs of a row differ in the seed only, or in the precision, which a note reports."""
    names, runs = f"{', '.join(row['name'])} would be one row", row["run"].tolist()
    different = [name for name in _differences(runs) if not name.startswith("config.common")]
    if different:
        some = ", ".join(different[:4])
        raise UserError(
            f"{names}, but differ in {some}: omit some runs, or group by it as well (--group-by ...,{different[0]})"
        )
    if row["seed"].duplicated().any():
        seed = row["seed"][row["seed"].duplicated()].iloc[0]
        raise UserError(
            f"{names}, but have the same seed {seed}: omit repeated runs, or group by a field in which they differ "
            "(--group-by)"
        )
    if any(run["data"] != runs[0]["data"] for run in runs):
        logger.warning("%s, but were trained on different data", names)


def _differences(runs: Sequence[TrainingRecord]) -> List[str]:
    """The fields in which runs differ, apart from their results and seeds."""
    import pandas

    # records of earlier versions have no settings of decoding
    known = next((run["decoding"] for run in runs if "decoding" in run), None)
    compared = [
        {
            "config": run["config"],
            "averaged": f"{averaged(run)}, {[entry.get('num_updates') for entry in run.get('averaged_from') or ()]}",
            "decoding": str(run.get("decoding", known)),
            "files": str(run.get("files")),
        }
        for run in runs
    ]
    settings = pandas.json_normalize(compared).astype(str)
    different = [name for name in settings if settings[name].nunique(dropna=False) > 1]
    # names of layers have dots, too
    return list(dict.fromkeys(re.sub(r"(\.attention_shapes)\..*", r"\1", name) for name in different))
