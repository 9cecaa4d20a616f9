"""Layer-wise relevance propagation: how much each encoder head contributes to what the model predicts.

Voita et al. (2019), section 3.1, with the rules of Ali et al. (2022, https://arxiv.org/abs/2202.07304), which conserve
relevance in transformers. From the largest logit f of a generation step relevance goes back to the inputs:

    linear layers       R_i = Σ_j x_i w_ji / z_j · R_j
    attention           weights are constants: a head's output is a weighted sum, relevance goes to the values
    layer norm          the standard deviation is a constant
    activation          f(z)/z is a constant
    residual, products  in the proportion of the summands

All of these are gradient × input in a network whose constants are cut off from the gradient. Nothing is lost: the
relevances of all inputs and biases add up to f.

The relevance of a head is Σ c · ∂f/∂c of its output c; its absolute value is divided by the sum over the heads of the
layer, and averaged over generation steps and sentences. The decoder reads the reference.
"""

import contextlib
import logging
from typing import Any, Callable, ContextManager, Dict, Iterator, Tuple

import torch
from torch import Tensor, nn

from collab_fairseq.attention import KeyValue
from collab_fairseq.modules.heads import head_name
from collab_fairseq.modules.sites import attention_layers
from collab_fairseq.translation import TrainedModel, batches
from fairseq_modern.errors import UserError

from .attention_hooks import Attended, Layers, frozen, hooked, multiplied

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def linearised(model: nn.Module) -> Iterator[None]:
    """Let gradient × input be relevance in all but attention, for which see :func:`values_only`."""

    def norm(module: Any, inputs: Tuple[Tensor, ...], output: Tensor) -> Tensor:
        x = inputs[0]
        deviation = (x.var(-1, unbiased=False, keepdim=True) + module.eps).sqrt().detach()
        return (x - x.mean(-1, keepdim=True)) / deviation * module.weight + module.bias

    with contextlib.ExitStack() as stack:
        for module in model.modules():
            if type(module).__name__.endswith("LayerNorm"):
                stack.callback(module.register_forward_hook(norm).remove)
            activation = module.__dict__.get("activation_fn")
            if activation is not None:
                stack.callback(setattr, module, "activation_fn", activation)
                setattr(module, "activation_fn", _as_share(activation))  # noqa: B010  (a module, to mypy)
        yield


def _as_share(activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """f(z)/z · z with f(z)/z a constant, 0 at z = 0."""

    def shared(z: Tensor) -> Tensor:
        constant = z.detach()
        share = activation(constant) / constant.masked_fill(constant == 0, 1.0)
        return z * share.masked_fill(constant == 0, 0.0)

    return shared


def values_only(layers: Layers) -> ContextManager[None]:
    """Let no gradient go through the weights of attention."""

    def hook(
        layer_id: str, compute: Callable[..., Attended], query: Tensor, entry: KeyValue, mask: Any, *_: Any
    ) -> Attended:
        with torch.no_grad():
            weights = compute(query, entry, mask, 0.0, True)[1]
        assert weights is not None
        return weights.matmul(layers[layer_id].head_values(entry)), weights

    return hooked(layers, hook)


def steps(trained: TrainedModel, sample: Any) -> Iterator[Dict[str, Tensor]]:
    """Relevance of encoder heads at every generation step of a batch of N sentences: layer_id → (N, H).

    Raises:
        UserError: nothing that the model predicts comes from them.
    """
    model, layers = trained.model, attention_layers(trained.model)
    rows = sample["net_input"]["src_tokens"].size(0)
    like: Any = {"dtype": next(model.parameters()).dtype, "device": trained.device, "requires_grad": True}
    multipliers: Dict[str, Tensor] = {}
    for layer_id, layer in layers.items():
        if layer_id.startswith("encoder"):
            multipliers[layer_id] = torch.ones(rows, layer.num_heads, **like)
    with torch.enable_grad(), frozen(model), values_only(layers), multiplied(layers, multipliers), linearised(model):
        logits = model(**sample["net_input"])[0]
        if not logits.requires_grad:
            raise UserError("encoder heads have no relevance, since the decoder has no cross-attention")
        for step in range(logits.size(1)):
            top = logits[:, step].max(dim=-1).values
            gradients = torch.autograd.grad(
                top.sum(), list(multipliers.values()), retain_graph=True, materialize_grads=True
            )
            yield dict(zip(multipliers, gradients, strict=True))


def relevance(trained: TrainedModel, split: str, **text: Any) -> Dict[str, Any]:
    """Of the encoder's heads on the text of a split (see :func:`collab_fairseq.translation.batches`).

    It takes one backward pass for every target position.

    Returns:
        ``heads``: head → mean relevance in its layer; ``steps``: number of generation steps.
    """
    sums: Dict[str, Tensor] = {}
    counted = done = 0
    pad = trained.task.target_dictionary.pad()
    for sample in batches(trained, split, **text):
        real = sample["target"].ne(pad)
        for number, heads in enumerate(steps(trained, sample)):
            keep = real[:, number]
            counted += int(keep.sum())
            for layer_id, values in heads.items():
                shares = nn.functional.normalize(values[keep].abs(), p=1.0, dim=1)
                sums[layer_id] = sums.get(layer_id, 0.0) + shares.double().sum(0).cpu()
        done += sample["nsentences"]
        logger.info("relevance: %d sentences", done)
    means = {}
    for layer_id, total in sums.items():
        for head, mean in enumerate((total / counted).tolist()):
            means[head_name(layer_id, head)] = mean
    return {"heads": means, "steps": counted}
