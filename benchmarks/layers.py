"""Rows of a single attention layer, with projections and masks as in a model: training and decoding.

All implementations have fairseq's call signature, with tensors of shape (T, R, E): positions, hypotheses, embedding
dimension. A decoding step does the same as fairseq's beam search: it reorders the cache of the layer, then attends from
one new position per hypothesis. Each implementation fills its own cache before the step.
"""

import copy
import functools
from typing import Any, Dict, Optional, Tuple

import torch
from fairseq.data import data_utils
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from benchmarks.measure import SEED, Options, Parts, Step, compare
from benchmarks.sentences import random_lengths
from collab_fairseq.attention import CollaborativeAttention, KeyValue, StandardAttention
from collab_fairseq.attention.cache import source_rows
from collab_fairseq.modules.attention import IncrementalAttention, incremental

#: E and H of the measured layers
EMBED_DIM, NUM_HEADS = 512, 8
#: our implementations → the reference that computes the same function with the same parameters
SAME_FUNCTION = {"standard-sdpa": "fairseq", "ours": "authors", "ours-bmm": "authors"}


class AuthorsAttention(IncrementalAttention, CollaborativeAttention):  # type: ignore[misc]
    """Collaborative heads as in the paper's code: the mixed keys of all heads, (N, H, S, D̃k), are stored and cached.

    scores_h = Q (K ⊙ m_h)ᵀ · scale. Cordonnier, Loukas, Jaggi (2020), https://arxiv.org/abs/2006.16362, equation 6.
    N: sentences, H: heads, S: source positions, D̃k: key dimension.
    """

    def _entry(self, key: Tensor, keys: Tensor, values: Tensor) -> KeyValue:
        mixed = keys.contiguous().unsqueeze(1) * self.mixing.unsqueeze(1)
        return KeyValue(mixed, self.split_heads(values), None)

    def _head_outputs(self, query: Tensor, entry: KeyValue, mask: Optional[Tensor], dropout: float, *_: Any) -> Any:
        scores = torch.einsum("ntk,nhsk->nhts", query * self.scale, entry.key)
        if mask is not None:
            scores = scores + mask
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)  # as in fairseq
        if dropout > 0.0:
            weights = nn.functional.dropout(weights, p=dropout)
        return weights.matmul(entry.value), weights

    def reorder_incremental_state(self, incremental_state: Any, new_order: Tensor, *find: Any) -> Any:
        """As in fairseq: in cross-attention, the rows of a sentence's beams are equal and need no reordering."""
        cached_key = self._get_input_buffer(incremental_state).get("prev_key")
        if self.cross and cached_key is not None and cached_key.size(0) == new_order.size(0):
            return incremental_state
        return super().reorder_incremental_state(incremental_state, new_order, *find)


def implementations(key_dim: int, cross: bool) -> Dict[str, nn.Module]:
    """All implementations of a layer, in float32 on the CPU; those of :data:`SAME_FUNCTION` have equal parameters.

    Args:
        key_dim: D̃k; standard heads have the full key dimension E.
        cross: cross-attention instead of self-attention.
    """
    torch.manual_seed(SEED)
    standard: Any = incremental(StandardAttention)
    collaborative: Any = incremental(CollaborativeAttention)
    modules: Dict[str, nn.Module] = {
        "fairseq": MultiheadAttention(EMBED_DIM, NUM_HEADS, self_attention=not cross, encoder_decoder_attention=cross),
        "standard-sdpa": standard(EMBED_DIM, NUM_HEADS, EMBED_DIM, cross=cross, kernel="sdpa"),
        "authors": AuthorsAttention(EMBED_DIM, NUM_HEADS, key_dim, cross=cross),
        "ours": collaborative(EMBED_DIM, NUM_HEADS, key_dim, cross=cross),
        "ours-bmm": collaborative(EMBED_DIM, NUM_HEADS, key_dim, cross=cross, kernel="bmm"),
    }
    for reference in dict.fromkeys(SAME_FUNCTION.values()):
        for parameter_name, parameter in modules[reference].named_parameters():
            if parameter_name.endswith("bias"):  # nonzero, to detect a missing bias
                nn.init.normal_(parameter, std=0.1)
    for name, reference in SAME_FUNCTION.items():
        modules[name].load_state_dict(modules[reference].state_dict())
    return modules


def check_agreement(steps: Dict[str, Step]) -> None:
    """Raise UserError unless implementations of one function have equal outputs, and input gradients in training."""
    for name, reference in SAME_FUNCTION.items():
        results = zip(("output", "input gradient"), steps[name](), steps[reference](), strict=False)
        for quantity, actual, expected in results:
            compare(f"{quantity} of {name}, compared with {reference},", actual, expected)


def padding_mask(sentences: int, longest: int, device: str) -> Tensor:
    """(N, S) boolean mask, True for padding: on the left, as in fairseq's sources. N: sentences, S: ``longest``."""
    lengths = torch.tensor(random_lengths(sentences, longest=longest), device=device)
    mask: Tensor = data_utils.lengths_to_padding_mask(lengths)
    return mask.flip(1)


def train(sentences: int, length: int, key_dim: int, options: Options) -> Parts:
    """Forward and backward pass of self-attention over sentences of at most ``length`` tokens, as in an encoder."""
    where: Any = {"device": options.device, "dtype": options.torch_dtype}
    random = torch.Generator().manual_seed(SEED)
    query = torch.randn(length, sentences, EMBED_DIM, generator=random).to(**where).requires_grad_()
    gradient = torch.randn(length, sentences, EMBED_DIM, generator=random).to(**where).requires_grad_()
    padding = padding_mask(sentences, length, options.device)

    def step_of(module: nn.Module) -> Step:
        leaves = [query, *module.to(**where).parameters()]

        def step() -> Tuple[Tensor, Tensor]:
            # the call of fairseq's encoder layers
            output: Tensor = module(query, query, query, key_padding_mask=padding, need_weights=False)[0]
            output.backward(gradient)
            query_gradient = query.grad
            for leaf in leaves:
                leaf.grad = None
            return output, query_gradient  # type: ignore[return-value]

        return step

    modules = implementations(key_dim, cross=False)
    steps = {name: step_of(module) for name, module in modules.items()}
    check_agreement(steps)
    # in this call fairseq uses torch's multi_head_attention_forward; "fairseq" in records is its own batched products
    names = {"fairseq": "fairseq-self"}
    return [{names.get(name, name): step for name, step in steps.items()}]


def decode(site: str, sentences: int, beams: int, length: int, key_dim: int, options: Options) -> Parts:
    """A decoding step of one layer.

    Args:
        site: ``cross`` or ``self``.
        beams: hypotheses per sentence.
        length: source positions in cross-attention; target positions, including the new one, in self-attention.
    """
    cross = site == "cross"
    where = (options.device, options.torch_dtype)
    random = torch.Generator().manual_seed(SEED)
    key: Any = None
    if cross:
        source = torch.randn(length, sentences, EMBED_DIM, generator=random)
        key = source.repeat_interleave(beams, dim=1).to(*where)
        padding = padding_mask(sentences, length, options.device).repeat_interleave(beams, dim=0)
    queries = torch.randn(1 if cross else length, sentences * beams, EMBED_DIM, generator=random).to(*where)
    # each hypothesis continues a random one of the same sentence
    chosen = torch.randint(beams, (sentences, beams), generator=random)
    order = (torch.arange(sentences)[:, None] * beams + chosen).flatten().to(options.device)
    find = functools.cache(source_rows)  # ours reads the order on the host in the first step only

    @torch.no_grad()
    def step_of(name: str, module: nn.Module) -> Step:
        module.to(*where).eval()
        # our layers cache the source once per sentence, fairseq and the authors once per hypothesis
        stride = beams if name in SAME_FUNCTION else 1
        cache: Dict[str, Any] = {}

        def attend(query: Tensor, state: Dict[str, Any]) -> Tensor:
            source, source_padding = query, None
            if cross:
                source, source_padding = key[:, ::stride], padding[::stride]
            output: Tensor = module(query, source, source, source_padding, state, False, cross)[0]
            return output

        for query in queries.split(1)[: None if cross else -1]:
            attend(query, cache)

        @torch.no_grad()
        def step() -> Tuple[Tensor]:
            state = {key: copy.copy(entry) for key, entry in cache.items()}  # every step starts with the same cache
            arguments = (find,) if isinstance(module, IncrementalAttention) else ()
            module.reorder_incremental_state(state, order, *arguments)  # type: ignore[operator]
            return (attend(queries[-1:], state),)

        return step

    modules = implementations(key_dim, cross=cross)
    steps = {name: step_of(name, module) for name, module in modules.items()}
    check_agreement(steps)
    return [steps]
