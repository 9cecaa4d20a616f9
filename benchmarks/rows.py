"""The rows: an id, such as ``layer/encoder/64x32/dk128/train``, says what to measure."""

import functools
import re
from typing import Any, Callable, Dict, Iterable, List

from benchmarks import layers, models
from benchmarks.measure import Options, Row

#: form of an id → function whose arguments are its groups
_FORMS: Dict[str, Callable[..., Any]] = {
    r"layer/encoder/(\d+)x(\d+)/dk(\d+)/(?:train|memory)": layers.train,
    r"decode/(cross|self)/(\d+)x(\d+)/[ST](\d+)/dk(\d+)": layers.decode,
    r"decode/translate/(tiny|base)/(\d+)/dk(\d+)(/bf16)?": models.translate,
    r"train/(tiny|base)/(\d+)x(\d+)/dk(\d+)(?:/(fast|fast-bf16|fast-memory))?": models.train,
}


def rows(what: str, options: Options, others: Iterable[str] = ()) -> Dict[str, Row]:
    """Row id → row, for ``layer``, ``decode`` or ``train``, and for those of ``others`` that are ids of its rows."""
    ids = [*_standard(what, options), *(name for name in others if name.startswith(f"{what}/"))]
    matches = ((name, function, re.fullmatch(form, name)) for name in ids for form, function in _FORMS.items())
    return {name: functools.partial(function, *_values(match)) for name, function, match in matches if match}


def _values(match: "re.Match[str]") -> List[Any]:
    return [int(group) if group and group.isdecimal() else group for group in match.groups()]


def _standard(what: str, options: Options) -> List[str]:
    """Ids of the rows of a device and data type."""
    on_gpu, with_bf16 = options.device == "cuda", options.dtype == "float32"
    if what == "layer":
        cases = ["64x32/dk128", "64x32/dk512", "16x128/dk128", "4x512/dk128"]
        cases += ["512x32/dk128", "512x32/dk512", "128x128/dk128", "32x512/dk128"] if on_gpu else []
        return [f"layer/encoder/{case}/{quantity}" for quantity in ("train", "memory") for case in cases]
    if what == "decode":
        translate = ["decode/translate/tiny/1000/dk32", "decode/translate/base/1000/dk128"]
        in_bf16 = [f"{name}/bf16" for name in translate if with_bf16]
        return ["decode/cross/64x4/S30/dk128", "decode/self/64x4/T15/dk128", *translate, *in_bf16]
    # the tiny batch has almost the 4,096 tokens of recipes/multi30k
    fast = ["train/base/64x32/dk128", "train/tiny/170x24/dk32", *(["train/base/512x32/dk128"] if on_gpu else [])]
    modes = ["fast", *(["fast-bf16"] if with_bf16 else []), "fast-memory"]
    return [*fast, "train/base/64x32/dk512", *(f"{name}/{mode}" for name in fast for mode in modes)]
