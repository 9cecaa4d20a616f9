"""Layer-wise relevance propagation: the contribution of each encoder head to the predictions.

Voita et al. (2019), https://arxiv.org/abs/1905.09418, section 3.1, with the rules of Ali et al. (2022),
https://arxiv.org/abs/2202.07304, which conserve relevance in transformers. The relevance of the largest logit f of a
generation step is propagated back to the inputs:

    linear layers       R_i = Σ_j x_i w_ji / z_j · R_j
    attention           weights are constants: a head's output is a weighted sum of values
    layer norm          the standard deviation is a constant
    activation          f(z)/z is a constant
    residual, products  in proportion to the summands

All rules are gradient × input in a network with these constants detached from the gradient. The relevances of all
inputs and biases sum to f.

The relevance of a head with output c is Σ c · ∂f/∂c. Its absolute value is divided by the sum over the heads of the
layer, and averaged over generation steps and sentences. The decoder input is the reference.
"""

import contextlib
import logging
from typing import Any, Callable, ContextManager, Dict, Iterator, Tuple

import torch
from torch import Tensor, nn

from collab_fairseq.attention import KeyValue
from collab_fairseq.attention.cache import Attended
from collab_fairseq.modules.head_names import head_name
from collab_fairseq.modules.sites import attention_layers
from collab_fairseq.translation import TrainedModel, batches
from fairseq_modern.errors import UserError

from .attention_hooks import Layers, frozen, hooked, multiplied

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def linearised(model: nn.Module) -> Iterator[None]:
    """Make gradient × input follow the rules for layer norms and activations."""

    def norm(module: Any, inputs: Tuple[Tensor, ...], output: Tensor) -> Tensor:
        x = inputs[0]
        deviation = (x.var(-1, unbiased=False, keepdim=True) + module.eps).sqrt().detach()
        return (x - x.mean(-1, keepdim=True)) / deviation * module.weight + module.bias

    with contextlib.ExitStack() as stack:
        for module in model.modules():
            if type(module).__name__.endswith("LayerNorm"):
                stack.callback(module.register_forward_hook(norm).remove)
            activation = vars(module).get("activation_fn")
            if activation is not None:
                stack.callback(setattr, module, "activation_fn", activation)
                vars(module)["activation_fn"] = _with_constant_ratio(activation)
        yield


def _with_constant_ratio(activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """f(z)/z · z, where f(z)/z is a constant, and 0 at z = 0."""

    def propagate(z: Tensor) -> Tensor:
        constant = z.detach()
        ratio = activation(constant) / constant.masked_fill(constant == 0, 1.0)
        return z * ratio.masked_fill(constant == 0, 0.0)

    return propagate


def values_only(layers: Layers) -> ContextManager[None]:
    """Make attention weights constants, so that gradients reach the values only."""

    def hook(
        layer_id: str, compute: Callable[..., Attended], query: Tensor, entry: KeyValue, mask: Any, *_: Any
    ) -> Attended:
        with torch.no_grad():
            weights = compute(query, entry, mask, 0.0, True)[1]
        assert weights is not None
        return weights.matmul(layers[layer_id].head_values(entry)), weights

    return hooked(layers, hook)


def relevance_by_step(trained: TrainedModel, sample: Any) -> Iterator[Dict[str, Tensor]]:
    """Relevance of the H heads of each encoder layer at every generation step of N sentences: layer_id → (N, H).

    Raises:
        UserError: the model has an adaptive softmax.
    """
    model, layers = trained.model, attention_layers(trained.model)
    trained.check_logits("relevance; give --relevance-sentences 0")
    sentences = sample["net_input"]["src_tokens"].size(0)
    parameter = next(model.parameters())
    multipliers: Dict[str, Tensor] = {}
    for layer_id, layer in layers.items():
        if layer_id.startswith("encoder"):
            multipliers[layer_id] = parameter.new_ones(sentences, layer.num_heads, requires_grad=True)
    with torch.enable_grad(), frozen(model), values_only(layers), multiplied(layers, multipliers), linearised(model):
        logits = model(**sample["net_input"])[0]
        if not logits.requires_grad:
            raise UserError("encoder heads have no relevance: the decoder has no cross-attention")
        for step in range(logits.size(1)):
            top = logits[:, step].max(dim=-1).values.sum()
            inputs = list(multipliers.values())
            gradients = torch.autograd.grad(top, inputs, retain_graph=True, materialize_grads=True)
            yield dict(zip(multipliers, gradients, strict=True))


def relevance(trained: TrainedModel, split: str, **batching: Any) -> Dict[str, Any]:
    """Mean relevance of the encoder heads, by one backward pass per target position.

    Args:
        batching: options of :func:`collab_fairseq.translation.batches`.

    Returns:
        ``heads``: head → mean share of the relevance of its layer; ``steps``: number of generation steps.
    """
    sums: Dict[str, Tensor] = {}
    total_steps = sentences = 0
    pad = trained.task.target_dictionary.pad()
    for sample in batches(trained, split, **batching):
        not_padding = sample["target"].ne(pad)
        for step, heads in enumerate(relevance_by_step(trained, sample)):
            keep = not_padding[:, step]
            total_steps += int(keep.sum())
            for layer_id, values in heads.items():
                shares = nn.functional.normalize(values[keep].abs(), p=1.0, dim=1)
                sums[layer_id] = sums.get(layer_id, 0.0) + shares.double().sum(0).cpu()
        sentences += sample["nsentences"]
        logger.info("relevance: %d sentences", sentences)
    means = {}
    for layer_id, total in sums.items():
        for head, mean in enumerate((total / total_steps).tolist()):
            means[head_name(layer_id, head)] = mean
    return {"heads": means, "steps": total_steps}
