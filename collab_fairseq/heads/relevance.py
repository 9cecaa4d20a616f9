"""Layer-wise relevance propagation: how much each encoder head contributes to what the model predicts.

Voita et al. (2019), section 3.1, with the rules of Ali et al. (2022, https://arxiv.org/abs/2202.07304), which conserve
relevance in transformers. From the largest logit f of a generation step relevance goes back to the inputs:

    linear layers       ε-rule: R_i = Σ_j x_i w_ji / (z_j + ε sign z_j) · R_j
    attention           weights are constants: a context is a weighted sum, relevance goes to the values
    layer norm          the standard deviation is a constant
    activation          f(z)/z is a constant
    residual, products  in the proportion of the summands

All of these are gradient × input in a network whose constants are cut off from the gradient, ε scaling the gradient
at the outputs z of linear layers. With ε = 0 nothing is lost: the relevances of all inputs and biases add up to f.

The relevance of a head is Σ context · ∂f/∂context; its absolute value is divided by the sum over the heads of the
layer, and averaged over generation steps and sentences. The decoder reads the reference.
"""

import contextlib
import logging
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Tuple

import torch
from torch import Tensor, nn

from collab_fairseq.attention import KeyValue
from collab_fairseq.modules.heads import head_name
from collab_fairseq.modules.sites import attention_layers
from collab_fairseq.translation import TrainedModel, batches

from .taps import Attended, Layers, frozen, multiplied, reading

logger = logging.getLogger(__name__)


class Step(NamedTuple):
    """One generation step of N sentences: f (N); place → R (N, H) of encoder heads; Σ R of inputs and biases, ()."""

    logits: Tensor
    heads: Dict[str, Tensor]
    total: Tensor


@contextlib.contextmanager
def linearised(model: nn.Module, epsilon: float) -> Iterator[List[Tensor]]:
    """Let gradient × input be relevance; yields the outputs of all embeddings, which are the inputs then."""
    inputs: List[Tensor] = []

    def embed(module: nn.Module, given: Any, output: Tensor) -> Tensor:
        inputs.append(output.detach().requires_grad_(True))
        return inputs[-1]

    def linear(module: nn.Module, given: Any, output: Tensor) -> Tensor:
        if output.requires_grad:
            z = output.detach()
            output.register_hook(lambda gradient: gradient * _share(z, z + epsilon * z.sign()))
        return output

    def norm(module: Any, given: Tuple[Tensor, ...], output: Tensor) -> Tensor:
        x = given[0]
        deviation = (x.var(-1, unbiased=False, keepdim=True) + module.eps).sqrt().detach()
        return (x - x.mean(-1, keepdim=True)) / deviation * module.weight + module.bias

    with contextlib.ExitStack() as stack:
        for module in model.modules():
            name, hook = type(module).__name__, None
            if isinstance(module, nn.Embedding) or name.endswith("PositionalEmbedding"):
                hook = embed
            elif isinstance(module, nn.Linear) and epsilon:
                hook = linear
            elif name.endswith("LayerNorm"):
                hook = norm
            if hook is not None:
                stack.callback(module.register_forward_hook(hook).remove)
            activation = module.__dict__.get("activation_fn")
            if activation is not None:
                stack.callback(setattr, module, "activation_fn", activation)
                setattr(module, "activation_fn", _as_share(activation))  # noqa: B010  (a module, to mypy)
        yield inputs


def _share(part: Tensor, whole: Tensor) -> Tensor:
    """part / whole, 0 where both are 0."""
    return torch.where(whole == 0, 0.0, part / whole.masked_fill(whole == 0, 1.0))


def _as_share(activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda z: z * _share(activation(z.detach()), z.detach())


def _values_only(
    layers: Layers, place: str, read: Callable[..., Attended], query: Tensor, entry: KeyValue, mask: Any, *_: Any
) -> Attended:
    with torch.no_grad():
        weights = read(query, entry, mask, 0.0, True)[1]
    assert weights is not None
    return weights.matmul(layers[place].head_values(entry)), weights


def steps(trained: TrainedModel, sample: Any, epsilon: float = 0.0) -> Iterator[Step]:
    """Relevances at every generation step of a batch, one after the other."""
    model, layers = trained.model, attention_layers(trained.model)
    rows = sample["net_input"]["src_tokens"].size(0)
    like: Any = {"dtype": next(model.parameters()).dtype, "device": trained.device, "requires_grad": True}
    ones = {p: torch.ones(rows, layer.num_heads, **like) for p, layer in layers.items() if p.startswith("encoder")}
    biases = [bias for name, bias in model.named_parameters() if name.endswith(".bias")]
    values_only = reading(layers, partial(_values_only, layers))
    with contextlib.ExitStack() as stack:
        for context in (torch.enable_grad(), frozen(model), values_only, multiplied(layers, ones)):
            stack.enter_context(context)
        inputs = stack.enter_context(linearised(model, epsilon))
        for bias in biases:
            bias.requires_grad_(True)
        logits = model(**sample["net_input"])[0]
        for step in range(logits.size(1)):
            top = logits[:, step].max(dim=-1).values
            wanted = [*ones.values(), *inputs, *biases]
            found = torch.autograd.grad(top.sum(), wanted, retain_graph=True, allow_unused=True, materialize_grads=True)
            heads = dict(zip(ones, found[: len(ones)], strict=True))
            rest = zip(wanted[len(ones) :], found[len(ones) :], strict=True)
            yield Step(top.detach(), heads, torch.stack([(x.detach() * g).sum() for x, g in rest]).sum())


def relevance(trained: TrainedModel, split: str, *, epsilon: float = 0.0, **text: Any) -> Dict[str, Any]:
    """Of the encoder's heads on a split; one backward pass for every target position.

    Args:
        epsilon: of the ε-rule. split, text: of :func:`collab_fairseq.translation.batches`.

    Returns:
        ``heads``: head → mean relevance in its layer; ``steps``: of how many; ``lost``: their mean |f − Σ R| / |f|.
    """
    sums: Dict[str, Tensor] = {}
    lost, counted, passes, done = 0.0, 0, 0, 0
    pad = trained.task.target_dictionary.pad()
    for sample in batches(trained, split, **text):
        real = sample["target"].ne(pad)
        for number, step in enumerate(steps(trained, sample, epsilon)):
            keep = real[:, number]
            counted, passes = counted + int(keep.sum()), passes + 1
            whole = step.logits.sum()
            lost += float((whole - step.total).abs() / whole.abs())
            for place, values in step.heads.items():
                shares = nn.functional.normalize(values[keep].abs(), p=1.0, dim=1)
                sums[place] = sums.get(place, 0.0) + shares.double().sum(0).cpu()
        done += sample["nsentences"]
        logger.info("relevance: %d sentences", done)
    heads = {
        head_name(place, head): value / counted
        for place, total in sums.items()
        for head, value in enumerate(total.tolist())
    }
    return {"heads": heads, "lost": lost / max(1, passes), "steps": counted}
