"""Attention maps: one picture of all heads of a site for one sentence."""

from typing import Any, Dict, List, Sequence, Tuple

from fairseq import utils

from collab_fairseq.checkpoints import PathLike
from collab_fairseq.modules.heads import LETTERS, head_name, in_model
from collab_fairseq.translation import TrainedModel, TranslationError
from collab_fairseq.translation.text import dataset

from .figures import SEQUENTIAL, SITE_TITLES, drawing, heat_map
from .roles import attention


def sentence_maps(trained: TrainedModel, split: str, number: int) -> Dict[str, Tuple[List[str], List[str], Any]]:
    """Head → units of the queries, units of the keys, weights (T, S), of sentence ``number`` (from 0).

    Raises:
        TranslationError: there is no such sentence.
    """
    data = dataset(trained, split)
    if not 0 <= number < len(data):
        raise TranslationError(f"{split} has sentences 0 to {len(data) - 1}, but not {number}")
    sample = data.collater([data[number]])
    sample = utils.apply_to_sample(lambda tensor: tensor.to(trained.device), sample)
    source, target = trained.task.source_dictionary, trained.task.target_dictionary
    units = {
        "source": [source[token] for token in sample["net_input"]["src_tokens"][0].tolist()],
        "input": [target[token] for token in sample["net_input"]["prev_output_tokens"][0].tolist()],
        "target": [target[token] for token in sample["target"][0].tolist()],
    }
    sides = {"encoder": ("source", "source"), "cross": ("target", "source"), "decoder": ("input", "input")}
    found = {}
    for place, seen in attention(trained, sample).items():
        queries, keys = sides[place.split(".")[0]]
        for head, weights in enumerate(seen.weights[0].cpu()):
            found[head_name(place, head)] = (units[queries], units[keys], weights)
    return {name: found[name] for name in sorted(found, key=in_model)}


def draw_maps(maps: Dict[str, Tuple[List[str], List[str], Any]], letter: str, path: PathLike) -> None:
    """The maps of one site (``E``, ``A`` or ``D``), a row for each layer.

    Raises:
        PlotError: see :func:`collab_fairseq.records.drawing.drawing`.
    """
    names = [name for name in maps if name.startswith(f"{letter}:")]
    rows: Dict[str, List[str]] = {}
    for name in names:
        rows.setdefault(name.split(":")[1], []).append(name)
    columns = max(map(len, rows.values()))
    queries, keys, _ = maps[names[0]]
    size = (0.8 + columns * (0.5 + 0.13 * len(keys)), 0.4 + len(rows) * (0.7 + 0.13 * len(queries)))
    with drawing(path, size) as figure:
        axes = figure.subplots(len(rows), columns, squeeze=False)
        for number, (line, members) in enumerate(zip(axes, rows.values(), strict=True), 1):
            for axis in line[len(members) :]:
                axis.set_visible(False)
            for axis, name in zip(line[: len(members)], members, strict=True):
                heat_map(axis, maps[name][2].tolist(), limits=(0.0, 1.0), colours=SEQUENTIAL)
                axis.set_title(name, fontsize="small")
                _label(axis, queries if name == members[0] else [], keys if number == len(rows) else [])
        figure.suptitle(SITE_TITLES[LETTERS[letter]], fontsize="medium")


def _label(axis: Any, queries: Sequence[str], keys: Sequence[str]) -> None:
    axis.set_yticks(range(len(queries)), [_shown(unit) for unit in queries], fontsize=5)
    axis.set_xticks(range(len(keys)), [_shown(unit) for unit in keys], fontsize=5, rotation=90)


def _shown(unit: str) -> str:
    return unit.replace("$", r"\$")  # matplotlib would begin a formula
