"""Trained models, standard and collaborative, that the tests of `collab heads` share."""

import copy

import torch
from fairseq.modules import SinusoidalPositionalEmbedding
from torch import nn

from collab_fairseq import checkpoints
from collab_fairseq.attention import block_mixing
from collab_fairseq.heads.attention_hooks import masked
from collab_fairseq.modules.fairseq_compat import as_transformer_collab, model_config
from collab_fairseq.modules.sites import attention_layers, parameter_prefix
from collab_fairseq.translation import batches
from collab_fairseq.translation.load import run_state

#: the attention of TINY_MODEL: one layer a side, two heads, width 16
LAYER_IDS = ("encoder.0", "cross.0", "decoder.0")
HEADS = [f"{letter}:1:{head}" for letter in "EAD" for head in (1, 2)]


def standard_state(run):
    """The checkpoint of the run as one of transformer_collab, with weights large enough to make a difference.

    Its translations run to the longest length allowed, which is therefore short.
    """
    state = as_transformer_collab(checkpoints.load(run / "checkpoint_best.pt"))
    model_config(state)["max_target_positions"] = 14
    random = torch.Generator().manual_seed(0)
    state["model"] = {
        name: tensor + 0.3 * torch.randn(tensor.shape, generator=random) if "layers" in name else tensor
        for name, tensor in state["model"].items()
    }
    return state


def collaborative_state(run, content_bias=False, key_dim=None):
    """The same with collaborative heads everywhere, dense mixing matrices; ``key_dim``: the first dimensions only."""
    state = copy.deepcopy(standard_state(run))
    config, model = model_config(state), state["model"]
    config.update(collaborative_heads="encoder_cross_decoder", attention_content_bias=content_bias, key_dim=key_dim)
    config["mixing_lr_multiplier"] = 2.0 if content_bias else 1.0
    random = torch.Generator().manual_seed(1)
    for layer_id in LAYER_IDS:
        prefix = parameter_prefix(layer_id)
        model[f"{prefix}mixing"] = (block_mixing([8, 8]) + 0.5 * torch.randn(2, 16, generator=random))[:, :key_dim]
        for name in ("q_proj.weight", "q_proj.bias", "k_proj.weight", "k_proj.bias"):
            model[prefix + name] = model[prefix + name][:key_dim]
        if content_bias:
            model[f"{prefix}content_bias"] = torch.randn(2, 16, generator=random)
    return state


def logits(trained):
    """All logits of five sentences of valid, in one row."""
    with torch.no_grad():
        return torch.cat([trained.model(**s["net_input"])[0].flatten() for s in batches(trained, "valid", sentences=5)])


def logits_without(trained, heads):
    with masked(attention_layers(trained.model), heads):
        return logits(trained)


def load(state, data, double=True):
    """The model of a state, in float64 unless told otherwise."""
    trained = run_state(state, "state", data)
    if double:
        trained.model.double()
    return trained


def relevance_totals(model, sample):
    """Largest logits (N, T), and of every step the sum of input × gradient over all embeddings and biases."""
    inputs = []

    def embed(module, given, output):
        inputs.append(output.detach().requires_grad_(True))
        return inputs[-1]

    embeddings = [m for m in model.modules() if isinstance(m, (nn.Embedding, SinusoidalPositionalEmbedding))]
    handles = [module.register_forward_hook(embed) for module in embeddings]
    top = model(**sample["net_input"])[0].max(-1).values
    for handle in handles:
        handle.remove()
    wanted = [*inputs, *(parameter for name, parameter in model.named_parameters() if name.endswith(".bias"))]
    found = []
    for step in range(top.size(1)):
        gradients = torch.autograd.grad(top[:, step].sum(), wanted, retain_graph=True, materialize_grads=True)
        found.append(sum(float((x.detach() * g).sum()) for x, g in zip(wanted, gradients, strict=True)))
    return top, torch.tensor(found, dtype=torch.float64)
