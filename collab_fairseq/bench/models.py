"""Whole translation models of one size: fairseq's transformer, ours with standard heads, ours, and the authors' way."""

from argparse import Namespace
from typing import Any, Dict, List, Optional, Sequence

import torch
from fairseq import models
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY
from torch import Tensor, nn

import collab_fairseq.models  # noqa: F401  (registers transformer_collab)
from collab_fairseq.modules.attention import IncrementalCollaborativeAttention

from .baselines import AuthorsAttention
from .checks import compare
from .lengths import MULTI30K, Histogram

#: our preset of a size; stock fairseq is built with the same sizes
PRESETS = {"tiny": "transformer_collab_tiny", "base": "transformer_collab"}
#: types of Multi30k's joined dictionary in recipes/multi30k; a joined BPE vocabulary of 32 thousand units, as for WMT14
VOCABULARY = {"tiny": 5904, "base": 32768}
#: two layers of two heads for --quick
_SMALL = {"embed_dim": 16, "ffn_embed_dim": 24, "layers": 2, "attention_heads": 2}


class Task:
    """As much of a translation task as models, criterion and search ask for: a joined dictionary."""

    def __init__(self, vocabulary: int) -> None:
        dictionary = Dictionary()
        for number in range(vocabulary - len(dictionary)):
            dictionary.add_symbol(f"w{number}")
        self.source_dictionary = self.target_dictionary = dictionary


def build(size: str, task: Any, key_dim: int, names: Sequence[str], seed: int, quick: bool) -> Dict[str, nn.Module]:
    """Models by name; ``fairseq`` and ``none`` share their parameters' values, ``ours`` and ``authors`` theirs.

    Args:
        size: of :data:`PRESETS`. task: with the dictionaries. key_dim: D̃k of ``ours`` and ``authors``.
        names: of ``fairseq`` (its transformer), ``none`` (ours with standard heads at the full key dim), ``ours``,
            ``authors`` (a mixed key of every head). seed: of the parameters. quick: a miniature instead of the size.
    """
    flags: Dict[str, Any] = {"share_all_embeddings": task.source_dictionary == task.target_dictionary}
    if quick:
        flags.update({f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in _SMALL.items()})

    def make(name: str) -> nn.Module:
        own = {"collaborative_heads": "none"} if name in ("fairseq", "none") else {"key_dim": key_dim}
        args = Namespace(arch=PRESETS[size], **flags, **own)
        ARCH_CONFIG_REGISTRY[args.arch](args)
        if name == "fairseq":
            args.arch = "transformer_wmt_en_de"  # with all sizes already set, this is fairseq's plain transformer
        torch.manual_seed(seed)
        model: nn.Module = models.build_model(args, task)
        if name == "authors":
            for module in model.modules():
                if isinstance(module, IncrementalCollaborativeAttention):
                    module.__class__ = AuthorsAttention  # the same parameters, computed otherwise
        return model

    found = {name: make(name) for name in names}
    for one, other in (("fairseq", "none"), ("ours", "authors")):
        if one in found and other in found:
            found[other].load_state_dict(found[one].state_dict())
    return found


def make_batch(
    sources: List[List[int]], targets: Optional[List[List[int]]], task: Any, device: torch.device
) -> Dict[str, Any]:
    """A batch as fairseq's translation data set makes it: sources padded on the left, targets on the right.

    Args:
        sources, targets: symbols of every sentence, ``</s>`` last. Without targets the batch is for translating.
    """
    pad = task.source_dictionary.pad()

    def padded(rows: List[List[int]], left: bool) -> Tensor:
        longest = max(map(len, rows))
        fill = [[pad] * (longest - len(row)) for row in rows]
        both = [f + row if left else row + f for row, f in zip(rows, fill, strict=True)]
        return torch.tensor(both, device=device)

    lengths = torch.tensor([len(row) for row in sources], device=device)
    batch: Dict[str, Any] = {"net_input": {"src_tokens": padded(sources, True), "src_lengths": lengths}}
    if targets is not None:
        batch["target"] = padded(targets, False)
        batch["net_input"]["prev_output_tokens"] = padded([[row[-1], *row[:-1]] for row in targets], False)
        batch["ntokens"] = sum(map(len, targets))
    return batch


def synthetic(lengths: Sequence[int], task: Any, seed: int) -> List[List[int]]:
    """Sentences of made-up symbols, of given lengths with ``</s>``."""
    random = torch.Generator().manual_seed(seed)
    first, end = task.source_dictionary.nspecial, task.source_dictionary.eos()
    high = len(task.source_dictionary)
    return [[*torch.randint(first, high, (n - 1,), generator=random).tolist(), end] for n in lengths]


def synthetic_corpus(number: int, task: Any, seed: int, histogram: Optional[Histogram]) -> List[List[int]]:
    """Sentences with the lengths of Multi30k's test set, or of another histogram."""
    return synthetic((histogram or MULTI30K).draw(number, seed), task, seed)


def check_models(found: Dict[str, nn.Module], batch: Dict[str, Any], loss: Any) -> None:
    """Models with the same parameters give the same loss and the same gradient of the embeddings, without dropout.

    The gradient is compared in float64: in float32 a unit whose input rounds to the other side of zero changes it.

    Args:
        found: models in float32. batch: small. loss: function of model and batch.

    Raises:
        MismatchError: they do not.
    """
    results: Dict[str, List[Tensor]] = {}
    for name, model in found.items():
        training = model.training
        model.eval()
        with torch.no_grad():
            single = loss(model, batch)
        embedding: Any = model.double().encoder.embed_tokens.weight  # type: ignore[union-attr]
        double = loss(model, batch)
        (gradient,) = torch.autograd.grad(double, embedding)
        results[name] = [single, double.detach(), gradient]
        model.float().train(training)
    for one, other in (("fairseq", "none"), ("authors", "ours")):
        if one in results and other in results:
            parts = ("loss", "loss in float64", "gradient")
            for part, got, expected in zip(parts, results[other], results[one], strict=True):
                compare(f"{part} of the model {other}, compared with {one},", got, expected, got.dtype)
