"""The criterion ``label_smoothed_cross_entropy_chunked``: fairseq's label-smoothed loss with less memory.

fairseq stores logits, log-probabilities and their gradients for all N tokens of a batch and all V vocabulary entries.
Here the output projection and the loss are computed for one chunk of tokens at a time, and no tensor of logits is
larger than :data:`CHUNK_BYTES` (:data:`GPU_CHUNK_BYTES` on a GPU). With features x, weight W and bias b of the output
projection, p = softmax(x Wᵀ + b), and target t, the loss of token n is

    loss_n = (1 − ε − ε') · (− log p_t) + ε' · Σ_v (− log p_v)          ε' = ε / (V − 1)

The factors of the log p sum to 1, so the gradient of the logits is p − (1 − ε − ε') · onehot(t) − ε'. If the losses are
summed, as in training, the forward pass computes the gradients of x, W and b for each chunk, so that logits are
computed once. In float16, gradients need the loss scale, which only the backward pass knows: it computes the logits
again. Padding is skipped. Label smoothing: Szegedy et al. (2016), https://arxiv.org/abs/1512.00567.
"""

import math
from typing import Any, Iterator, List, Mapping, NamedTuple, Optional, Tuple

import torch
from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.distributed.fully_sharded_data_parallel import FullyShardedDataParallel
from torch import Tensor, nn

from collab_fairseq.modules.layers import linear_output
from fairseq_modern.errors import UserError

CRITERION = "label_smoothed_cross_entropy_chunked"
#: size of the log-probabilities of one chunk of tokens; on a GPU, launching small chunks takes longer than computing
CHUNK_BYTES = 1 << 25
GPU_CHUNK_BYTES = 1 << 29


class Losses(NamedTuple):
    """Losses of N tokens.

    Attributes:
        loss: the label-smoothed loss, summed or (N).
        nll: − log p_t, summed or (N).
        correct: number of targets with the highest probability; 0 if not counted.
    """

    loss: Tensor
    nll: Tensor
    correct: Tensor


def label_smoothed(
    features: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    target: Tensor,
    epsilon: float,
    reduce: bool = True,
    count: bool = False,
) -> Losses:
    """The loss in the module docstring. Only ``loss`` has a gradient, and no second derivative.

    Args:
        features: x, (N, D). Under autocast, matrix products are computed in the autocast dtype.
        weight, bias: W (V, D) and b (V) or None, of the output projection.
        target: t, (N), from 0 to V − 1.
        epsilon: ε, weight of the smoothing.
        reduce: sum over tokens.
        count: count correct predictions.
    """
    device = features.device.type
    product = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else features.dtype
    early = reduce and product != torch.float16 and torch.is_grad_enabled()
    apply: Any = ChunkedLoss.apply
    with torch.autocast(device, enabled=False):
        return Losses(*apply(features, weight, bias, target, epsilon, reduce, count, product, early))


class Gradients:
    """Gradients of features (N, D), weight (V, D) and bias (V), accumulated over chunks; None if not needed."""

    def __init__(self, features: Tensor, weight: Tensor, bias: Optional[Tensor], needed: Tuple[bool, ...]) -> None:
        wide = torch.promote_types(weight.dtype, torch.float32)  # sums over many chunks
        self.features = torch.empty_like(features) if needed[0] else None
        self.weight = torch.zeros_like(weight, dtype=wide) if needed[1] else None
        self.bias = torch.zeros_like(bias, dtype=wide) if bias is not None and needed[2] else None

    def add(self, rows: slice, logits: Tensor, features: Tensor, weight: Tensor) -> None:
        """Add a chunk: the gradient of its logits (n, V); its features (n, D) and W in the dtype of the products."""
        if self.bias is not None:
            self.bias.add_(logits.sum(0))
        logits = logits.to(weight.dtype)
        if self.features is not None:
            self.features[rows] = logits.mm(weight)
        if self.weight is None:
            return
        if self.weight.dtype == logits.dtype:
            self.weight.addmm_(logits.t(), features)
        else:
            self.weight.add_(logits.t().mm(features))

    def of(self, *leaves: Optional[Tensor]) -> List[Optional[Tensor]]:
        """The three gradients, each in the dtype of its leaf."""
        gradients = (self.features, self.weight, self.bias)
        return [
            None if gradient is None or leaf is None else gradient.to(leaf.dtype)
            for gradient, leaf in zip(gradients, leaves, strict=True)
        ]


def chunks(features: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Iterator[Tuple[slice, Tensor, Tensor]]:
    """For each chunk: its rows, their features (n, D) and log-probabilities (n, V) in memory that chunks share.

    Args:
        features: (N, D).
        weight, bias: (V, D) and (V) or None, in the dtype of the products.
    """
    wide = torch.promote_types(weight.dtype, torch.float32)
    limit = GPU_CHUNK_BYTES if weight.device.type == "cuda" else CHUNK_BYTES
    tokens = features.size(0)
    largest = max(1, limit // (weight.size(0) * wide.itemsize))
    number = max(1, math.ceil(tokens / largest))
    size = max(1, math.ceil(tokens / number))  # chunks of nearly equal size
    memory = torch.empty(min(size, tokens), weight.size(0), dtype=wide, device=weight.device)
    for first in range(0, tokens, size):
        rows = slice(first, min(first + size, tokens))
        chunk = features[rows].to(weight.dtype)
        logits = memory[: rows.stop - first]
        if wide == weight.dtype:
            torch.mm(chunk, weight.t(), out=logits)
        else:
            logits.copy_(chunk.mm(weight.t()))
        if bias is not None:
            logits.add_(bias)
        yield rows, chunk, torch.log_softmax(logits, -1, out=logits)


class ChunkedLoss(torch.autograd.Function):
    """The formulas above. ``product``: dtype of matrix products; ``early``: compute gradients in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Optional[Tensor],
        target: Tensor,
        epsilon: float,
        reduce: bool,
        count: bool,
        product: torch.dtype,
        early: bool,
    ) -> Tuple[Tensor, Tensor, Tensor]:
        needed = ctx.needs_input_grad[:3]
        gradients = Gradients(features, weight, bias, needed) if early and any(needed) else None
        cast, wide = weight.to(product), torch.promote_types(product, torch.float32)
        nll = torch.empty(target.shape, dtype=wide, device=target.device)
        smooth = torch.empty(target.shape, dtype=wide, device=target.device)
        correct = torch.zeros((), dtype=torch.long, device=target.device)
        for rows, chunk, log_probabilities in chunks(features, cast, bias):
            targets = target[rows, None]
            nll[rows] = -log_probabilities.gather(1, targets).squeeze(1)
            smooth[rows] = -log_probabilities.sum(1)
            if count:
                correct += log_probabilities.argmax(1, keepdim=True).eq(targets).sum()
            if gradients is not None:
                gradients.add(rows, gradient_of_logits(log_probabilities, targets, epsilon), chunk, cast)
        on_target, per_entry = factors(epsilon, weight.size(0))
        loss = on_target * nll + per_entry * smooth
        if reduce:
            loss, nll = loss.sum(), nll.sum()
        ctx.save_for_backward(features, weight, bias, target)
        ctx.epsilon, ctx.product, ctx.gradients = epsilon, product, gradients
        ctx.mark_non_differentiable(nll, correct)
        return loss, nll, correct

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> Tuple[Optional[Tensor], ...]:
        # torch's once_differentiable would return a second derivative of zero if the incoming gradient is constant
        if torch.is_grad_enabled():
            raise RuntimeError(f"create_graph must be False with {CRITERION}: use label_smoothed_cross_entropy")
        features, weight, bias, target = ctx.saved_tensors
        gradients, ctx.gradients = ctx.gradients, None  # recomputed in a second backward pass (retain_graph)
        if gradients is not None:
            scaled = gradients.of(features, weight, bias)
            if gradient.device.type != "cpu" or gradient.item() != 1.0:
                scaled = [None if x is None else x.mul_(gradient) for x in scaled]
            return (*scaled, *[None] * 6)
        gradients = Gradients(features, weight, bias, ctx.needs_input_grad[:3])
        cast = weight.to(ctx.product)
        per_token = gradient.expand(features.size(0))[:, None]  # () or (N) → (N, 1)
        for rows, chunk, log_probabilities in chunks(features, cast, bias):
            logits = gradient_of_logits(log_probabilities, target[rows, None], ctx.epsilon)
            gradients.add(rows, logits.mul_(per_token[rows]), chunk, cast)
        return (*gradients.of(features, weight, bias), *[None] * 6)


def factors(epsilon: float, vocabulary_size: int) -> Tuple[float, float]:
    """1 − ε − ε', and ε' = ε / (V − 1)."""
    per_entry = epsilon / (vocabulary_size - 1)
    return 1.0 - epsilon - per_entry, per_entry


def gradient_of_logits(log_probabilities: Tensor, target: Tensor, epsilon: float) -> Tensor:
    """p − (1 − ε − ε') · onehot(t) − ε' from log p (n, V), in place; target (n, 1)."""
    on_target, per_entry = factors(epsilon, log_probabilities.size(1))
    gradient = log_probabilities.exp_().sub_(per_entry)
    return gradient.scatter_add_(1, target, gradient.new_full(target.shape, -on_target))


@register_criterion(CRITERION, dataclass=LabelSmoothedCrossEntropyCriterionConfig)
class ChunkedLabelSmoothedCrossEntropy(LabelSmoothedCrossEntropyCriterion):  # type: ignore[misc]
    """fairseq's ``label_smoothed_cross_entropy`` with its options, computed in chunks (see the module docstring).

    It supports ``transformer`` and ``transformer_collab``, with or without shared embeddings. Other output layers, as
    with ``--adaptive-softmax-cutoff``, raise UserError.
    """

    same_state_as = LabelSmoothedCrossEntropyCriterion.__name__  # fairseq_modern resumes a run with either criterion

    def check_training(self, trainer: Any) -> None:
        """Reject other output layers, and DDP that searches for parameters which only the loss uses."""
        cfg, model = trainer.cfg.distributed_training, trainer.get_model()
        tied = output_projection(model).weight is model.decoder.embed_tokens.weight
        searches = cfg.find_unused_parameters and cfg.ddp_backend in ("c10d", "pytorch_ddp")
        if searches and not tied and trainer.data_parallel_world_size > 1:
            raise UserError(
                f"--criterion {CRITERION} uses the output projection outside the model, where --find-unused-parameters "
                "does not find it; leave out that flag, use --ddp-backend legacy_ddp, or share the decoder's "
                "embeddings (--share-decoder-input-output-embed)"
            )

    def forward(self, model: nn.Module, sample: Mapping[str, Any], reduce: bool = True) -> Tuple[Tensor, int, Any]:
        output_projection(model)  # rejects models with other output layers
        sample = {**sample, "net_input": {**sample["net_input"], "features_only": True}}
        result: Tuple[Tensor, int, Any] = super().forward(model, sample, reduce=reduce)
        return result

    def compute_loss(self, model: Any, net_output: Any, sample: Any, reduce: bool = True) -> Tuple[Tensor, Tensor]:
        """Loss and negative log-likelihood, sums or (B·T, 1) as in fairseq; see :func:`label_smoothed`."""
        features, extra = net_output
        target = model.get_targets(sample, net_output)[:, self.ignore_prefix_size :].flatten()  # (B, T) → (B·T)
        features = features[:, self.ignore_prefix_size :].flatten(0, 1)  # (B, T, E) → (B·T, E)
        number = sample["ntokens"] if target.device.type == "cuda" and self.ignore_prefix_size == 0 else None
        kept = tokens(target, self.padding_idx, number)
        layer = output_projection(model)
        if kept.numel() < target.numel():
            features = features.index_select(0, kept)
        losses = label_smoothed(
            features, layer.weight, layer.bias, target[kept], self.eps, reduce, self.report_accuracy
        )
        extra["accuracy"] = losses.correct, torch.tensor(kept.numel())
        if reduce:
            return losses.loss, losses.nll
        zeros = losses.loss.new_zeros(target.numel(), 1)
        return zeros.index_copy(0, kept, losses.loss[:, None]), zeros.index_copy(0, kept, losses.nll[:, None])

    def compute_accuracy(self, model: Any, net_output: Any, sample: Any) -> Tuple[Tensor, Tensor]:
        """Numbers of correct predictions and of targets, from :meth:`compute_loss`."""
        accuracy: Tuple[Tensor, Tensor] = net_output[1]["accuracy"]
        return accuracy


def tokens(target: Tensor, padding: int, number: Optional[int] = None) -> Tensor:
    """Positions of a target (N) that are not padding. If their ``number`` is given, a GPU is not synchronised."""
    if number is None:
        return target.ne(padding).nonzero().squeeze(1)
    torch._assert_async(target.ne(padding).sum() == number)
    return target.eq(padding).byte().argsort(stable=True)[:number]


def output_projection(model: nn.Module) -> nn.Linear:
    """The linear layer that computes logits from features; other output layers raise UserError."""
    if isinstance(model, FullyShardedDataParallel):
        raise UserError(
            f"--criterion {CRITERION} needs the complete weight of the output layer, which "
            "--ddp-backend fully_sharded splits between processes; leave out one of the two"
        )
    decoder: Any = getattr(model, "decoder", None)
    if getattr(decoder, "adaptive_softmax", None) is not None:
        raise UserError(f"--criterion must be adaptive_loss with --adaptive-softmax-cutoff; got {CRITERION}")
    layer = linear_output(decoder)
    if layer is None:
        output = type(getattr(decoder, "output_projection", None)).__name__
        raise UserError(
            f"--criterion {CRITERION} needs a transformer whose output projection is one linear layer without hooks or "
            f"adapters; got {type(model).__name__} with {output}"
        )
    return layer
