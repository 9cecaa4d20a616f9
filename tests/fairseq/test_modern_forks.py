"""Forks and other versions of fairseq keep their own code: a mend looks for the defect that it is for."""

from types import SimpleNamespace

import torch
from torch import nn

from fairseq_modern import amp, distributed, encoder_layer, expressions, saving

C = 12


def layer_of_a_fork(fast_path):
    """A module with an encoder layer that has an adapter of its own, and the fast path or not."""

    class Layer(nn.Module):
        def __init__(self, cfg=None):
            super().__init__()
            self.self_attn = self.build_self_attention(C, cfg)
            self.fc1 = nn.Linear(C, C)
            self.in_proj_weight = nn.Parameter(torch.zeros(3 * self.self_attn.q_proj.weight.shape[0], C))
            self.adapter = nn.Linear(C, C)
            self.can_use_fastpath = True

        def build_self_attention(self, embed_dim, cfg):
            return nn.ModuleDict({name: nn.Linear(C, C) for name in ("q_proj", "out_proj")})

        def forward(self, x):
            return self.adapter(x)

        def _load_from_state_dict(self, state_dict, prefix, *rest):
            state_dict[prefix + "adapter.bias"] = state_dict.pop(prefix + "adapter_bias")
            state_dict[prefix + "in_proj_weight"] = torch.cat([state_dict[prefix + "self_attn.q_proj.weight"]] * 3)
            super()._load_from_state_dict(state_dict, prefix, *rest)

    class Fast(Layer):
        def forward(self, x):
            if self.can_use_fastpath:
                return torch._transformer_encoder_layer_fwd(x, self.in_proj_weight)
            return self.adapter(x)

    return SimpleNamespace(TransformerEncoderLayerBase=Fast if fast_path else Layer, torch=torch)


def test_a_layer_without_the_fast_path_is_left_alone():
    fork = layer_of_a_fork(fast_path=False)
    before = dict(vars(fork.TransformerEncoderLayerBase))
    encoder_layer.patch(fork)
    assert dict(vars(fork.TransformerEncoderLayerBase)) == before
    assert fork.torch is torch


def test_a_layer_with_the_fast_path_keeps_what_a_fork_has_added():
    fork = layer_of_a_fork(fast_path=True)
    encoder_layer.patch(fork)
    layer = fork.TransformerEncoderLayerBase().eval()
    x = torch.randn(2, C)
    assert torch.equal(layer(x), layer.adapter(x))
    assert "in_proj_weight" not in layer.state_dict()
    state = layer.state_dict()
    state["adapter_bias"] = state.pop("adapter.bias") + 1
    other = fork.TransformerEncoderLayerBase()
    other.load_state_dict(state)
    assert torch.allclose(other(x), layer(x) + 1)


class Optimizer:
    """As in a fork whose `--amp` is right."""

    def step(self):
        self.scaler.step(self.optimizer)
        self.scaler.update()


class PathManager:
    """As in a fork that forces its copies to the disk."""

    @staticmethod
    def copy(source, target):
        import os

        os.fsync(target)


def all_gather_list(data, group=None, max_size=1):
    return [data]


def test_what_works_is_left_alone():
    functions = ("all_gather_list", "_broadcast_object_slow", "call_main", "distributed_main", "torch_persistent_save")
    fork = SimpleNamespace(
        AMPOptimizer=Optimizer, PathManager=PathManager, DistributedDataParallel=nn.Module, eval=len,
        **dict.fromkeys(functions, all_gather_list),
    )  # fmt: skip
    step = Optimizer.step
    for patch in (amp.patch, saving.patch, distributed.patch, distributed.patch_data_parallel, expressions.patch):
        patch(fork)
    assert Optimizer.step is step
    assert fork.PathManager is PathManager
    assert fork.all_gather_list is fork._broadcast_object_slow is all_gather_list
    assert fork.DistributedDataParallel is nn.Module
    assert fork.eval is len
