"""Patches mixed precision: `--amp` on a GPU and on a CPU, and `--bf16` in fairseq-generate and fairseq-interactive.

torch's GradScaler remembers for each optimizer object whether its gradients have been unscaled. fairseq unscales those
of the inner optimizer before clipping, then steps the wrapper around it, for which the scaler unscales them again: they
end up divided twice by the scale.

On a CPU `--amp` is fp32 without a word, since fairseq asks CUDA for autocast. Here the loss is computed under torch's
autocast for CPUs, in bfloat16, which needs no scale; parameters, their gradients and Adam's moments stay in fp32. A CPU
without units for bfloat16 would be slower for it: that is refused.

fairseq-generate and fairseq-interactive know `--fp16` but not `--bf16`, and translate in fp32.

`--fp16` on a CPU is refused; half precision on one without units for bfloat16 is slower than fp32, and said to be.

`--fp16` and `--bf16` train parameters in fp32, but checkpoints hold only what is left of them in half precision, from
which a training resumes. Here the state of the optimizer has them too.
"""

import logging
import warnings
from types import ModuleType
from typing import Any, List

import torch

from fairseq_modern import processor
from fairseq_modern.errors import UserError
from fairseq_modern.patching import names, wrap

logger = logging.getLogger(__name__)


def step(self: Any) -> None:
    """Step the optimizer whose gradients were unscaled, unless they overflowed, and adapt the scale."""
    self.scaler.step(self.optimizer)
    self.scaler.update()


def patch(module: ModuleType) -> None:
    """Patch `AMPOptimizer`: its step, where it steps the wrapper, and on a CPU its scaler."""
    optimizer = module.AMPOptimizer
    if names(optimizer.step) == {"scaler", "step", "fp32_optimizer", "update"}:
        optimizer.step = step
    if "__init__" not in vars(optimizer) or "cuda" not in names(optimizer.__init__):
        return

    @wrap(optimizer)
    def __init__(original: Any, self: Any, cfg: Any, params: Any, fp32_optimizer: Any, **options: Any) -> None:
        self.on_cpu = all(parameter.device.type == "cpu" for parameter in fp32_optimizer.params)
        if self.on_cpu and not processor.bfloat16_units():
            raise UserError(
                "--amp computes in bfloat16 on a CPU, but this one has no units for it "
                f"({processor.name()} with {processor.vector_units()}); leave out --amp to train in fp32"
            )
        with warnings.catch_warnings():
            if self.on_cpu:
                warnings.simplefilter("ignore")  # that there is no CUDA
            original(self, cfg, params, fp32_optimizer, **options)
        if self.on_cpu:
            self._grad_scaler = torch.amp.GradScaler("cpu", enabled=False)

    @wrap(optimizer)
    def clip_grad_norm(original: Any, self: Any, max_norm: float, *args: Any, **options: Any) -> Any:
        if self.scaler.is_enabled():
            return original(self, max_norm, *args, **options)
        norm = self.fp32_optimizer.clip_grad_norm(max_norm, *args, **options)
        if not torch.isfinite(norm).all():  # there is no scale to lower, as in fp32
            raise FloatingPointError("gradients are Nan/Inf")
        return norm


def in_fp32(optimizer: Any) -> List[torch.Tensor]:
    """The parameters in fp32 of an `FP16Optimizer`: a list, or one flat tensor for each device."""
    given = optimizer.fp32_params
    return [p.data for p in (given.values() if isinstance(given, dict) else given)]


def patch_half(module: ModuleType) -> None:
    """Wrap what `FP16Optimizer` saves and loads, where the parameters in fp32 are left out."""
    optimizer = module._FP16OptimizerMixin
    if "fp32_params" in names(optimizer.state_dict):
        return

    @wrap(optimizer)
    def state_dict(original: Any, self: Any) -> Any:
        return {**original(self), "fp32_params": in_fp32(self)}

    @wrap(optimizer)
    def load_state_dict(original: Any, self: Any, state_dict: Any, *args: Any, **options: Any) -> None:
        original(self, state_dict, *args, **options)
        saved, own = state_dict.get("fp32_params", ()), in_fp32(self)
        if [p.shape for p in saved] == [p.shape for p in own]:
            for mine, other in zip(own, saved, strict=True):
                mine.copy_(other)


def slow_on_cpu(common: Any) -> None:
    """Warn of half precision on a CPU that has no units for it."""
    flags = ("memory_efficient_fp16", "memory_efficient_bf16", "fp16", "bf16")
    flag = next((name for name in flags if getattr(common, name, False)), None)
    if flag is not None and not processor.bfloat16_units():
        logger.warning(
            "--%s is several times slower than fp32 on this CPU, which has no units for bfloat16 (%s with %s)",
            flag.replace("_", "-"),
            processor.name(),
            processor.vector_units(),
        )


def patch_trainer(module: ModuleType) -> None:
    """Wrap how `fairseq.trainer.Trainer` is made, where `--fp16` on a CPU fails at asking CUDA for its device."""

    @wrap(module.Trainer)
    def __init__(original: Any, self: Any, cfg: Any, *args: Any, **options: Any) -> None:
        common = getattr(cfg, "common", None)
        if common is not None and (common.cpu or not torch.cuda.is_available()) and not common.tpu:
            if common.fp16 and not common.memory_efficient_fp16 and not common.fp16_no_flatten_grads:
                raise UserError(
                    f"--fp16 trains on a GPU, but {'--cpu is given' if common.cpu else 'torch sees none here'}; leave "
                    f"out --fp16 to train in fp32{', or give --amp' if processor.bfloat16_units() else ''}"
                )
            slow_on_cpu(common)
        original(self, cfg, *args, **options)


def patch_task(module: ModuleType) -> None:
    """Wrap the training step of tasks, where its autocast is CUDA's alone."""
    if not {"cuda", "autocast"} <= names(module.FairseqTask.train_step):
        return

    @wrap(module.FairseqTask)
    def train_step(
        original: Any, self: Any, sample: Any, model: Any, criterion: Any, optimizer: Any, *args: Any, **options: Any
    ) -> Any:
        if getattr(optimizer, "on_cpu", False):
            criterion = torch.autocast("cpu", dtype=torch.bfloat16)(criterion)
        return original(self, sample, model, criterion, optimizer, *args, **options)


def patch_inference(module: ModuleType) -> None:
    """Wrap what fairseq-generate and fairseq-interactive do to a model before they translate."""
    if "bf16" in names(module.BaseFairseqModel.prepare_for_inference_):
        return

    @wrap(module.BaseFairseqModel)
    def prepare_for_inference_(original: Any, self: Any, cfg: Any) -> None:
        original(self, cfg)
        if next(self.parameters()).device.type == "cpu" and not getattr(cfg.common, "tpu", False):
            slow_on_cpu(cfg.common)
        if getattr(cfg.common, "bf16", False) and not getattr(cfg.common, "tpu", False):
            self.to(torch.bfloat16)
