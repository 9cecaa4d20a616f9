"""Defects of mixed and half precision, on GPUs and CPUs. Check: the code of each function named below.

- `--amp` divides gradients by the loss scale twice (`AMPOptimizer.step`): before clipping, fairseq unscales the inner
  optimizer, and then steps the wrapper around it, for which torch's GradScaler unscales the gradients again.
- `--amp` on a CPU computes in fp32 (`FairseqTask.train_step`). Here, the loss is computed in bf16, without a loss
  scale; parameters, gradients and Adam's moments stay fp32. On a CPU without native bf16 support, it is an error.
- `--fp16` on a CPU ends in a traceback (`Trainer.__init__`); `--bf16` may be much slower there, without a warning.
- fairseq-generate and fairseq-interactive ignore `--bf16` (`BaseFairseqModel.prepare_for_inference_`).
- Checkpoints of `--fp16` and `--bf16` lack the fp32 parameters, so that resumed training continues from rounded
  parameters (`_FP16OptimizerMixin.state_dict`).
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
    """Step the optimizer whose gradients were unscaled, unless they overflowed, and update the scale."""
    self.scaler.step(self.optimizer)
    self.scaler.update()


def patch(module: ModuleType) -> None:
    """Patch `AMPOptimizer`: its step, and its scaler on a CPU."""
    optimizer = module.AMPOptimizer
    if names(optimizer.step) == {"scaler", "step", "fp32_optimizer", "update"}:
        optimizer.step = step
    if "cuda" not in names(optimizer.__init__):
        return

    @wrap(optimizer)
    def __init__(original, self, cfg, params, fp32_optimizer, **options):
        self.on_cpu = all(parameter.device.type == "cpu" for parameter in fp32_optimizer.params)
        if not self.on_cpu:
            original(self, cfg, params, fp32_optimizer, **options)
            return
        if not processor.bfloat16_units():
            raise UserError(f"--amp needs a CPU with native bf16 support; got {processor.name()}; leave out --amp")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that CUDA is not available
            original(self, cfg, params, fp32_optimizer, **options)
        self._grad_scaler = torch.amp.GradScaler("cpu", enabled=False)

    @wrap(optimizer)
    def clip_grad_norm(original, self, max_norm, *args, **options):
        if self.scaler.is_enabled():
            return original(self, max_norm, *args, **options)
        norm = self.fp32_optimizer.clip_grad_norm(max_norm, *args, **options)
        if not torch.isfinite(norm).all():  # there is no scale to lower, as in fp32
            raise FloatingPointError("gradients are Nan/Inf")
        return norm


def fp32_tensors(optimizer: Any) -> List[torch.Tensor]:
    """Return the fp32 parameters of an `FP16Optimizer`: a list, or one flat tensor per device."""
    parameters = optimizer.fp32_params
    if isinstance(parameters, dict):
        parameters = parameters.values()
    return [parameter.data for parameter in parameters]


def patch_half(module: ModuleType) -> None:
    """Wrap `state_dict` and `load_state_dict` of `FP16Optimizer`."""
    optimizer = module._FP16OptimizerMixin
    if "fp32_params" in names(optimizer.state_dict):
        return

    @wrap(optimizer)
    def state_dict(original, self):
        return {**original(self), "fp32_params": fp32_tensors(self)}

    @wrap(optimizer)
    def load_state_dict(original, self, state_dict, *args, **options):
        original(self, state_dict, *args, **options)
        saved, current = state_dict.get("fp32_params", ()), fp32_tensors(self)
        if [tensor.shape for tensor in saved] == [tensor.shape for tensor in current]:
            for source, target in zip(saved, current, strict=True):
                target.copy_(source)


def warn_if_slow(common: Any) -> None:
    """Warn of half precision on a CPU without native bf16 support."""
    flags = ("memory_efficient_fp16", "memory_efficient_bf16", "fp16", "bf16")
    flag = next((name for name in flags if getattr(common, name, False)), None)
    if flag is not None and not processor.bfloat16_units():
        flag = flag.replace("_", "-")
        logger.warning(f"--{flag} is several times slower than fp32 on this CPU ({processor.name()})")


def patch_trainer(module: ModuleType) -> None:
    """Wrap `fairseq.trainer.Trainer.__init__`."""

    @wrap(module.Trainer)
    def __init__(original, self, cfg, *args, **options):
        common = getattr(cfg, "common", None)
        if common is not None and (common.cpu or not torch.cuda.is_available()) and not common.tpu:
            if common.fp16 and not common.memory_efficient_fp16 and not common.fp16_no_flatten_grads:
                reason = "--cpu is given" if common.cpu else "torch finds none"
                advice = "leave out --fp16 or give --amp" if processor.bfloat16_units() else "leave out --fp16"
                raise UserError(f"--fp16 needs a GPU, but {reason}; {advice}")
            warn_if_slow(common)
        original(self, cfg, *args, **options)


def patch_task(module: ModuleType) -> None:
    """Wrap `FairseqTask.train_step`."""
    if not {"cuda", "autocast"} <= names(module.FairseqTask.train_step):
        return

    @wrap(module.FairseqTask)
    def train_step(original, self, sample, model, criterion, optimizer, *args, **options):
        if getattr(optimizer, "on_cpu", False):
            criterion = torch.autocast("cpu", dtype=torch.bfloat16)(criterion)
        return original(self, sample, model, criterion, optimizer, *args, **options)


def patch_inference(module: ModuleType) -> None:
    """Wrap `BaseFairseqModel.prepare_for_inference_`."""
    if "bf16" in names(module.BaseFairseqModel.prepare_for_inference_):
        return

    @wrap(module.BaseFairseqModel)
    def prepare_for_inference_(original, self, cfg):
        original(self, cfg)
        if getattr(cfg.common, "tpu", False):
            return
        if next(self.parameters()).device.type == "cpu":
            warn_if_slow(cfg.common)
        if getattr(cfg.common, "bf16", False):
            self.to(torch.bfloat16)
