"""Defects of mixed and half precision, on GPUs and CPUs. Check: the code of each function named below.

- `--amp` divides gradients by the loss scale twice (`AMPOptimizer.step`): before clipping, fairseq unscales the inner
  optimizer, and then steps the wrapper around it, for which torch's GradScaler unscales the gradients again.
- `--amp-init-scale` and `--amp-scale-window` are ignored (`AMPOptimizer.__init__` passes other settings).
- `--amp` on a CPU computes in fp32 (`FairseqTask.train_step`). Here, the loss is computed in bf16, without a loss
  scale; parameters, gradients and Adam's moments stay fp32. On a CPU without native bf16 support, it is an error.
- `--fp16` on a CPU ends in a traceback, with some flags only when gradients overflow (`Trainer.__init__`); `--bf16` may
  be much slower there, without a warning.
- fairseq-generate, fairseq-interactive and fairseq-eval-lm ignore `--bf16`
  (`BaseFairseqModel.prepare_for_inference_`). Models loaded by `from_pretrained` stay fp32.
- Checkpoints of `--fp16` and `--bf16` lack the fp32 parameters, so that resumed training continues from rounded
  parameters (`_FP16OptimizerMixin.state_dict`). They are ignored if the model of the checkpoint has been changed.
- Checkpoints of `--amp` lack the loss scale, and those of `--fp16` the number of updates since its last change
  (`state_dict` of their optimizers), so that resumed training skips other updates because of overflows.
"""

import logging
import warnings
from types import ModuleType
from typing import Any, List

import torch

from fairseq_modern import processor
from fairseq_modern.errors import UserError
from fairseq_modern.patching import names, step, wrap

logger = logging.getLogger(__name__)

# of the loss scaler of --fp16
COUNTERS = ("_iter", "_last_overflow_iter", "_last_rescale_iter", "_overflows_since_rescale")


def step_once(self: Any) -> None:
    """Step the optimizer whose gradients were unscaled, unless they overflowed, and update the scale."""
    self.scaler.step(self.optimizer)
    self.scaler.update()


def patch(module: ModuleType) -> None:
    """Patch `AMPOptimizer`: its step, its initial scale and growth interval, and its scaler on a CPU."""
    optimizer = module.AMPOptimizer
    ignores_settings = "fp16_init_scale" in names(optimizer.__init__)
    if names(optimizer.step) == {"scaler", "step", "fp32_optimizer", "update"}:
        optimizer.step = step_once
    if "cuda" not in names(optimizer.__init__):
        return

    @wrap(optimizer)
    def __init__(original, self, cfg, params, fp32_optimizer, **options):
        self.on_cpu = all(parameter.device.type == "cpu" for parameter in fp32_optimizer.params)
        if not self.on_cpu:
            original(self, cfg, params, fp32_optimizer, **options)
            state = self.scaler.state_dict()
            if ignores_settings and state:  # it is empty without CUDA
                window = getattr(cfg.common, "amp_scale_window", None)
                settings = {"scale": cfg.common.amp_init_scale, "growth_interval": window or state["growth_interval"]}
                self.scaler.load_state_dict({**state, **settings})
            return
        if not processor.bfloat16_units():
            raise UserError(f"--amp needs a CPU with native bf16 support; got {processor.name()}; leave out --amp")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that CUDA is not available
            original(self, cfg, params, fp32_optimizer, **options)
        self._grad_scaler = torch.amp.GradScaler("cpu", enabled=False)

    @wrap(optimizer)
    def state_dict(original, self):
        return {**original(self), "grad_scaler": self.scaler.state_dict()}

    @wrap(optimizer)
    def load_state_dict(original, self, state_dict, *args, **options):
        original(self, state_dict, *args, **options)
        scaler, saved = self.scaler.state_dict(), state_dict.get("grad_scaler")
        if scaler and saved:  # neither comes from a CPU; the window is that of this command
            self.scaler.load_state_dict({**scaler, **{name: saved[name] for name in ("scale", "_growth_tracker")}})

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


def equal_when_rounded(saved: List[torch.Tensor], current: List[torch.Tensor], dtype: torch.dtype) -> bool:
    """Whether both lists have the same shapes and, rounded to a dtype, the same values."""
    if [tensor.shape for tensor in saved] != [tensor.shape for tensor in current]:
        return False
    pairs = zip(saved, current, strict=True)
    return all(torch.equal(source.to(target.device, dtype), target.to(dtype)) for source, target in pairs)


def load_fp32_parameters(optimizer: Any, saved: List[torch.Tensor]) -> None:
    """Load the fp32 parameters of a checkpoint, unless its model was changed afterwards."""
    # made from the half parameters of the model, which has been loaded before
    current = fp32_tensors(optimizer)
    if not equal_when_rounded(saved, current, optimizer.fp16_params[0].dtype):
        logger.warning(
            "ignored the fp32 parameters in the checkpoint, which do not match its model, as after averaging; "
            "training continues from the parameters of the model"
        )
        return
    for source, target in zip(saved, current, strict=True):
        target.copy_(source)


def patch_half(module: ModuleType) -> None:
    """Wrap `state_dict` and `load_state_dict` of `FP16Optimizer` and `MemoryEfficientFP16Optimizer`."""
    if "fp32_params" not in names(module._FP16OptimizerMixin.state_dict):
        complete_state(module._FP16OptimizerMixin, has_fp32_parameters=True)
        complete_state(module._MemoryEfficientFP16OptimizerMixin, has_fp32_parameters=False)


def complete_state(optimizer: Any, has_fp32_parameters: bool) -> None:
    """Add the counters of the loss scaler and the fp32 parameters to the state of an optimizer."""

    @wrap(optimizer)
    def state_dict(original, self):
        state = original(self)
        if self.scaler is not None:
            state["loss_scale_counters"] = {name: getattr(self.scaler, name) for name in COUNTERS}
        if has_fp32_parameters:
            state["fp32_params"] = fp32_tensors(self)
        return state

    @wrap(optimizer)
    def load_state_dict(original, self, state_dict, *args, **options):
        original(self, state_dict, *args, **options)
        if self.scaler is not None:
            vars(self.scaler).update(state_dict.get("loss_scale_counters", {}))
        if has_fp32_parameters and "fp32_params" in state_dict:
            load_fp32_parameters(self, state_dict["fp32_params"])


def warn_if_slow(common: Any) -> None:
    """Warn of half precision on a CPU without native bf16 support."""
    flags = ("memory_efficient_fp16", "memory_efficient_bf16", "fp16", "bf16")
    flag = next((name for name in flags if getattr(common, name, False)), None)
    if flag is not None and not processor.bfloat16_units():
        flag = flag.replace("_", "-")
        logger.warning(f"--{flag} is several times slower than fp32 on this CPU ({processor.name()})")


@step()
def check_precision(cfg: Any) -> None:
    """Before a trainer is built: raise UserError, or warn, if a CPU does not support the precision."""
    common = getattr(cfg, "common", None)
    if common is None or common.tpu or not (common.cpu or not torch.cuda.is_available()):
        return
    if common.fp16:
        flag = "--memory-efficient-fp16" if common.memory_efficient_fp16 else "--fp16"
        reason = "--cpu is given" if common.cpu else "torch finds none"
        advice = f"leave out {flag} or give --amp" if processor.bfloat16_units() else f"leave out {flag}"
        raise UserError(f"{flag} needs a GPU, but {reason}; {advice}")
    warn_if_slow(common)


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
        # programs require --path; `from_pretrained` passes the configuration of the training run
        is_program = getattr(getattr(cfg, "common_eval", None), "path", None) is not None
        if not is_program or getattr(cfg.common, "tpu", False):
            return
        if next(self.parameters()).device.type == "cpu":
            warn_if_slow(cfg.common)
        if getattr(cfg.common, "bf16", False):
            self.to(torch.bfloat16)
