"""Forks and other versions of fairseq keep their own code: a patch looks for the defect that it is for."""

from types import SimpleNamespace

import torch
from torch import nn

from fairseq_modern import amp, distributed, encoder_layer, expressions, saving
from tests.common import FLOAT32

C = 12


class Layer(nn.Module):
    """As in a fork whose encoder layer has an adapter of its own and no fast path."""

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


def test_a_layer_with_the_fast_path_keeps_what_a_fork_has_added():
    encoder_layer.patch(SimpleNamespace(TransformerEncoderLayerBase=Fast, torch=torch))
    torch.manual_seed(0)
    layer, other = Fast().eval(), Fast()
    x = torch.randn(2, C)
    assert torch.equal(layer(x), layer.adapter(x))
    assert "in_proj_weight" not in layer.state_dict()
    state = layer.state_dict()
    state["adapter_bias"] = state.pop("adapter.bias") + 1
    other.load_state_dict(state)
    assert (other(x) - layer(x) - 1).abs().max() < FLOAT32


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
        TransformerEncoderLayerBase=Layer, torch=torch, **dict.fromkeys(functions, all_gather_list),
    )  # fmt: skip
    before = dict(vars(Optimizer)), dict(vars(Layer))
    patches = (amp, distributed, encoder_layer, expressions, saving)
    for patch in (*(each.patch for each in patches), distributed.patch_data_parallel):
        patch(fork)
    assert (dict(vars(Optimizer)), dict(vars(Layer))) == before
    assert fork.torch is torch
    assert fork.PathManager is PathManager
    assert fork.all_gather_list is fork._broadcast_object_slow is all_gather_list
    assert fork.DistributedDataParallel is nn.Module
    assert fork.eval is len
