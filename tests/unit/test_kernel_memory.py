"""Memory that the kernels keep for the backward pass."""

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from collab_fairseq.attention import kernels
from tests.unit.attention_cases import ATTENTION_TYPES, E, H, N, T, build, call, tensors


class Allocations(TorchDispatchMode):
    """Memory that operations allocate: storage → bytes; 0 for storage that existed before, and for its views."""

    def __init__(self):
        super().__init__()
        self.sizes = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tree, new in (((args, kwargs), False), (result, True)):
            for storage in (x.untyped_storage() for x in tree_leaves(tree) if torch.is_tensor(x)):
                self.sizes.setdefault(StorageWeakRef(storage), storage.nbytes() if new else 0)
        return result

    def alive(self):
        return sum(size for storage, size in self.sizes.items() if not storage.expired())


@pytest.mark.parametrize("name", ["standard", *ATTENTION_TYPES])
def test_checkpointed_layer_keeps_only_its_output(name):
    """--checkpoint-activations: the rest is computed again in the backward pass."""
    query = torch.randn(2, kernels.MANY_QUERIES, E, dtype=torch.float64, requires_grad=True)
    for kernel in ("bmm", "sdpa", "auto"):
        layer = build(name, kernel=kernel)

        def attend(x, layer=layer):
            return layer(x, x, x, need_weights=False)[0]

        with Allocations() as kept:
            output = checkpoint(attend, query, use_reentrant=False, preserve_rng_state=False)
        assert kept.alive() == output.nbytes, kernel
        with Allocations() as kept:
            output = attend(query)
        assert kept.alive() > 3 * output.nbytes  # control


@pytest.mark.parametrize("key_dim", [6, 48])
def test_bytes_kept_for_the_backward_pass(key_dim):
    arguments = tensors(key_dim=key_dim, dtype=torch.float32)
    key_len = arguments[2].size(1)
    weights = N * H * T * key_len

    def kept(kernel, dropout=0.0):
        with Allocations() as allocations:
            context, _ = call(kernel, *arguments, dropout=dropout)
        return allocations.alive() - context.nbytes

    assert kept("head_loop") == 4 * weights
    assert kept("head_loop", dropout=0.1) == 4 * weights + weights  # one byte per weight
    # bmm keeps the mixed queries of all heads, the scaled mixing matrix and the weights
    mixed = N * H * T * key_dim
    assert kept("bmm") == 4 * (mixed + H * key_dim + weights)
    # as under autocast: all but the mixing matrix in bfloat16
    arguments = [x if number == 1 else x.bfloat16() for number, x in enumerate(arguments)]
    assert kept("bmm") == 2 * (mixed + H * key_dim + weights) + 4 * weights  # only the softmax is float32
