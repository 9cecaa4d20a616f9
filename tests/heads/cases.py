"""Trained models, standard and collaborative, shared by the tests of `collab heads`."""

import copy
import functools
import json

import torch
from fairseq.modules import SinusoidalPositionalEmbedding
from torch import nn

from collab_fairseq import checkpoints
from collab_fairseq.attention import block_mixing
from collab_fairseq.modules.fairseq_compat import as_transformer_collab
from collab_fairseq.modules.sites import parameter_prefix
from collab_fairseq.reparam import fit_layers
from collab_fairseq.reparam.fairseq import converted_state, scores_by_layer
from collab_fairseq.translation import batches
from collab_fairseq.translation.load import model_from_state
from tests import common

#: the attention layers of TINY_MODEL: width 16, two heads each
LAYER_IDS = ("encoder.0", "cross.0", "decoder.0")
HEADS = [f"{letter}:1:{head}" for letter in "EAD" for head in (1, 2)]


#: `collab heads`
collab = functools.partial(common.collab, "heads")


def parts_of(record):
    return json.loads(record.read_text(encoding="utf-8"))["parts"]


def standard_state(run):
    """The checkpoint of a run as transformer_collab, with noise that makes every head matter.

    Its translations reach the maximum length, which is therefore short.
    """
    state = as_transformer_collab(checkpoints.load(run / "checkpoint_best.pt"))
    checkpoints.model_settings(state)["max_target_positions"] = 14
    generator = torch.Generator().manual_seed(0)
    for name, tensor in state["model"].items():
        if "layers" in name:
            state["model"][name] = tensor + 0.3 * torch.randn(tensor.shape, generator=generator)
    return state


def collaborative_state(run, content_bias=False, key_dim=None):
    """The same model with dense mixing matrices at all sites, and the first ``key_dim`` key dimensions."""
    state = copy.deepcopy(standard_state(run))
    config, model = checkpoints.model_settings(state), state["model"]
    config.update(collaborative_heads="encoder_cross_decoder", attention_content_bias=content_bias, key_dim=key_dim)
    config["mixing_lr_multiplier"] = 2.0 if content_bias else 1.0
    generator = torch.Generator().manual_seed(1)
    for layer_id in LAYER_IDS:
        prefix = parameter_prefix(layer_id)
        model[f"{prefix}mixing"] = (block_mixing([8, 8]) + 0.5 * torch.randn(2, 16, generator=generator))[:, :key_dim]
        for name in ("q_proj.weight", "q_proj.bias", "k_proj.weight", "k_proj.bias"):
            model[prefix + name] = model[prefix + name][:key_dim]
        if content_bias:
            model[f"{prefix}content_bias"] = torch.randn(2, 16, generator=generator)
    return state


def logits(trained):
    """All logits of five sentences of valid, flat."""
    with torch.no_grad():
        samples = batches(trained, "valid", sentences=5)
        return torch.cat([trained.model(**sample["net_input"])[0].flatten() for sample in samples])


def load(state, data, double=True):
    """The model of a checkpoint, in float64 by default."""
    trained = model_from_state(state, "state", data)
    if double:
        trained.model.double()
    return trained


def convert(trained, key_dims, calibrations=None):
    """The checkpoint with fitted collaborative heads, and `site.layer` → fit; a single key dimension is for all."""
    layer_ids = None if isinstance(key_dims, int) else list(key_dims)
    fits = fit_layers(scores_by_layer(trained, layer_ids), key_dims, calibrations)
    return converted_state(trained, {layer_id: fit.weights for layer_id, fit in fits.items()}), fits


def relevance_totals(model, sample):
    """Largest logits (N, T), and for every step the sum of input × gradient over all embeddings and biases."""
    inputs = []

    def embed(module, _, output):
        inputs.append(output.detach().requires_grad_(True))
        return inputs[-1]

    embeddings = [m for m in model.modules() if isinstance(m, (nn.Embedding, SinusoidalPositionalEmbedding))]
    handles = [module.register_forward_hook(embed) for module in embeddings]
    top = model(**sample["net_input"])[0].max(-1).values
    for handle in handles:
        handle.remove()
    inputs += [parameter for name, parameter in model.named_parameters() if name.endswith(".bias")]
    totals = []
    for step in range(top.size(1)):
        gradients = torch.autograd.grad(top[:, step].sum(), inputs, retain_graph=True, materialize_grads=True)
        totals.append(sum(float((x.detach() * gradient).sum()) for x, gradient in zip(inputs, gradients, strict=True)))
    return top, torch.tensor(totals, dtype=torch.float64)
