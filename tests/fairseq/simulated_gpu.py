"""A simulated GPU that counts the synchronizations of a training step or a step of beam search.

    python -m tests.fairseq.simulated_gpu {training,search} FLAGS...        prints the counts as JSON

Tensors are on torch's meta device and report `cuda`. Reading a value would wait for all launched kernels: it is counted
with the line of code that reads, and returns a value with which the program can continue. Operations that mix tensors
of host and GPU are counted, too.
"""

import collections
import contextlib
import json
import sys
from argparse import Namespace
from types import SimpleNamespace
from typing import Any, Dict, List, Optional, Tuple

import torch
from fairseq import models, options, utils
from fairseq.criterions import build_criterion
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks.translation import TranslationTask
from fairseq.trainer import Trainer
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from collab_fairseq.bench.models import make_batch
from tests.fairseq.commands import USER_DIR
from tests.fairseq.models import Task

aten = torch.ops.aten
GPU = torch.device("cuda", 0)
#: packages whose lines are reported
PACKAGES = ("collab_fairseq", "fairseq_modern", "fairseq")
#: in-place kernels that torch does not have for the meta device
WITHOUT_META = {"_fused_adamw_", "_amp_foreach_non_finite_check_and_unscale_", "_amp_update_scale_"}


def caller() -> str:
    """The innermost line in one of the packages."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.split(".")[0] in PACKAGES:
            return f"{module}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back
    return "elsewhere"


class OnGpu(TorchFunctionMode):
    """Meta tensors report that they are on the GPU; tensors for the GPU are created on the meta device."""

    @staticmethod
    def place(device: Any) -> Any:
        numbered = type(device) is int
        named = isinstance(device, (str, torch.device)) and torch.device(device).type == "cuda"
        return torch.device("meta") if numbered or named else device

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Optional[Dict[str, Any]] = None):
        kwargs = dict(kwargs or {})
        if function is torch.Tensor.device.__get__ or function == torch.Tensor.device.__get__:
            return GPU if args[0].is_meta else function(*args)
        if function == torch.Tensor.is_cuda.__get__:
            return args[0].is_meta
        if function is torch.Tensor.cuda:
            return args[0].to("meta")
        if "device" in kwargs:
            kwargs["device"] = self.place(kwargs["device"])
        if function is torch.Tensor.to:
            args = (args[0], *map(self.place, args[1:]))
        return function(*args, **kwargs)


class SyncCounter(TorchDispatchMode):
    """Count synchronizations (``waits``) and operations on tensors of both devices (``mixed``) by line of code."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: Dict[str, int] = collections.Counter()
        self.mixed: Dict[str, int] = collections.Counter()

    def clear(self) -> None:
        self.waits.clear()
        self.mixed.clear()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        name = function.overloadpacket.__name__
        if not any(x.is_meta for x in tensors):
            return function(*args, **kwargs)
        moves = name in ("copy_", "_to_copy")
        if not moves and any(x.dim() > 0 and not x.is_meta for x in tensors):
            self.mixed[f"{name}: {caller()}"] += 1
        to_host = name == "_to_copy" and torch.device(kwargs.get("device") or "meta").type == "cpu"
        to_host |= name == "copy_" and not tensors[0].is_meta
        # indexing by a mask counts its entries first, except for assigning one value
        by_mask = name == "index" or (name == "index_put_" and args[2].numel() > 1)
        by_mask = by_mask and any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1])
        answers = {
            "_local_scalar_dense": self.scalar,
            "equal": lambda *_: True,
            "is_nonzero": lambda *_: True,
            "nonzero": lambda x: x.new_empty(x.numel(), x.dim(), dtype=torch.long),
            "masked_select": lambda x, mask: x.new_empty(0),
        }
        if name in answers or to_host or by_mask:
            self.waits[f"{name}: {caller()}"] += 1
        if name in answers:
            return answers[name](*args)
        if to_host:
            return torch.zeros(tensors[0].shape, dtype=kwargs.get("dtype") or tensors[0].dtype)
        if name in WITHOUT_META:
            return None
        return function(*args, **kwargs)

    @staticmethod
    def scalar(x: torch.Tensor) -> Any:
        """1.0; integers: 1, for which beams move with their sentences; booleans: True, except for gradient overflow."""
        if x.dtype == torch.bool:
            return "dynamic_loss_scaler" not in caller()
        return 1.0 if x.is_floating_point() else 1


def simulate_gpu() -> None:
    """Make torch report a GPU."""
    properties = SimpleNamespace(major=9, minor=0, total_memory=80 << 30, name="a GPU")
    values = {"is_available": True, "is_bf16_supported": True, "is_current_stream_capturing": False}
    values.update(current_device=0, device_count=1, max_memory_allocated=0)
    values.update(get_device_capability=(9, 0), get_device_properties=properties)
    silent = ("get_rng_state", "set_rng_state", "reset_peak_memory_stats", "empty_cache", "manual_seed")
    for name, value in {**values, **dict.fromkeys(silent)}.items():
        setattr(torch.cuda, name, lambda *_, value=value, **__: value)


def prepare(flags: List[str]) -> Tuple[Any, Any, Any, Dict[str, Any]]:
    """fairseq's settings, a task with 32,768 vocabulary entries, the model on the meta device, a batch on the host."""
    model = ["--user-dir", str(USER_DIR), "--arch", "transformer_collab", "--share-all-embeddings", "--key-dim", "128"]
    args = options.parse_args_and_arch(options.get_training_parser(), ["DATA", *model, *flags])
    cfg = convert_namespace_to_omegaconf(args)
    dictionary = Task(32768).target_dictionary
    task = TranslationTask(cfg.task, dictionary, dictionary)
    sentences = [torch.full((length,), 5) for length in [30] * 30 + [23] * 2]  # the last two get padding
    with torch.device("meta"):
        model = models.build_model(cfg.model, task)
    return cfg, task, model, make_batch(sentences, sentences, task, "cpu")


def training(flags: List[str], counter: SyncCounter) -> None:
    """Count the last of three updates by fairseq's trainer."""
    update = ["--optimizer", "fused_adam", "--adam-betas", "(0.9, 0.98)", "--lr", "0.0005", "--clip-norm", "1.0"]
    loss = ["--criterion", "label_smoothed_cross_entropy_chunked", "--label-smoothing", "0.1", "--max-tokens", "2048"]
    cfg, task, model, sample = prepare([*update, *loss, *flags])
    trainer = Trainer(cfg, task, model, build_criterion(cfg.criterion, task))
    for _ in range(3):
        counter.clear()
        trainer.train_step([sample])


def search(flags: List[str], counter: SyncCounter) -> None:
    """Count the last of six steps of the search of fairseq-generate, in which no hypothesis ends."""
    cfg, task, model, sample = prepare(flags)
    dtype = torch.bfloat16 if cfg.common.bf16 else torch.float16 if cfg.common.fp16 else torch.float32
    model.to(GPU, dtype).eval()
    model.make_generation_fast_(need_attn=False)
    decode, steps = model.decoder.forward, iter(range(6))

    def decode_and_count(*args: Any, **options: Any) -> Any:
        next(steps)  # raises StopIteration in the seventh step
        counter.clear()
        return decode(*args, **options)

    model.decoder.forward = decode_and_count
    with contextlib.suppress(StopIteration):
        task.build_generator([model], Namespace(beam=4)).generate([model], utils.move_to_cuda(sample))


if __name__ == "__main__":
    simulate_gpu()
    syncs = SyncCounter()
    with OnGpu(), syncs:
        {"training": training, "search": search}[sys.argv[1]](sys.argv[2:], syncs)
    json.dump({"waits": syncs.waits, "mixed": syncs.mixed}, sys.stdout)
