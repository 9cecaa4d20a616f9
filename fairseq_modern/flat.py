"""Lays the parameters of `--bf16` on a GPU one after the other into a single tensor, as fairseq does for `--fp16`.

fairseq leaves them apart for TPUs. On a GPU each of them is then clipped and updated by operations of its own: at the
size of transformer-base some 3,000 launches an update in place of 600, which take longer than what they compute.
`--fp16-no-flatten-grads` leaves them apart, as it does for `--fp16`.

A checkpoint of parameters laid out in either way is taken up in the other.
"""

from types import ModuleType
from typing import Any, Dict, List, Sequence

import torch

from fairseq_modern.amp import in_fp32
from fairseq_modern.errors import UserError
from fairseq_modern.patching import names, wrap


def can_be_flat(cfg: Any, params: Sequence[torch.Tensor]) -> bool:
    """Whether nothing needs the parameters one by one: groups of parameters, experts, shards of the optimizer."""
    apart = cfg.common.fp16_no_flatten_grads or cfg.distributed_training.zero_sharding == "os"
    return not apart and not any(hasattr(p, name) for p in params for name in ("param_group", "expert", "base_expert"))


def on_gpu(params: Sequence[torch.Tensor]) -> bool:
    """Whether all parameters are on a GPU."""
    return all(p.is_cuda for p in params)


def cut(given: Sequence[torch.Tensor], shapes: Sequence[torch.Size]) -> List[torch.Tensor]:
    """The numbers of tensors, in order, as tensors of these shapes."""
    parts = torch.cat([x.reshape(-1) for x in given]).split([shape.numel() for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def fitted(state: Dict[str, Any], shapes: Sequence[torch.Size]) -> Dict[str, Any]:
    """The state of an optimizer for parameters of these shapes, from one for the same ones laid out otherwise.

    Raises:
        UserError: not every parameter has a state.
    """
    saved, groups = state["state"], state["param_groups"]
    if len(groups) != 1 or len(groups[0]["params"]) == len(shapes):
        return state
    if len(saved) not in (0, len(groups[0]["params"])):
        raise UserError(
            f"expected an optimizer's state of all {len(groups[0]['params'])} parameters, but the checkpoint has it of "
            f"{len(saved)}; train on with --reset-optimizer, or as before with --fp16-no-flatten-grads"
        )
    entries = [saved[number] for number in groups[0]["params"]] if saved else [{}]
    columns = {name: [entry[name] for entry in entries] for name in entries[0]}
    made = {
        name: cut(column, shapes) if torch.is_tensor(column[0]) and column[0].dim() else [column[0]] * len(shapes)
        for name, column in columns.items()
    }
    numbers = range(len(shapes))
    found = {
        **state,
        "state": {n: {name: column[n] for name, column in made.items()} for n in numbers if saved},
        "param_groups": [{**groups[0], "params": list(numbers)}],
    }
    if "fp32_params" in state:
        found["fp32_params"] = cut(state["fp32_params"], shapes)
    return found


def patch(module: ModuleType) -> None:
    """Wrap how `FP16Optimizer` is built where it leaves parameters of `--bf16` apart, and what it loads."""
    optimizer = module.FP16Optimizer
    if not {"bf16", "fp16_no_flatten_grads"} <= names(optimizer.build_optimizer):
        return
    build = optimizer.build_optimizer

    def build_optimizer(cls: Any, cfg: Any, params: Any, **options: Any) -> Any:
        if not (cfg.common.bf16 and on_gpu(params) and can_be_flat(cfg, params)):
            return build(cfg, params, **options)
        cfg.common.bf16 = False  # all that this does here: parameters become flat, and the loss gets a scale
        try:
            made = build(cfg, params, **options)
        except RuntimeError as error:
            if "does not support flat params" not in str(error):
                raise
            cfg.common.bf16 = True
            return build(cfg, params, **options)
        finally:
            cfg.common.bf16 = True
        made.scaler = None
        return made

    optimizer.build_optimizer = classmethod(build_optimizer)

    @wrap(module._FP16OptimizerMixin)
    def load_state_dict(original: Any, self: Any, state_dict: Any, *args: Any, **options: Any) -> None:
        original(self, fitted(state_dict, [p.shape for p in in_fp32(self)]), *args, **options)
