"""Patches training in several processes.

- Resuming: the first process sends its state to the others through `torch.save` and `torch.load`, which refuses the
  configuration in it. The processes of one job may trust one another: the state goes through
  `torch.distributed.broadcast_object_list`.
- `all_gather_list` needs a GPU: without one, `torch.distributed.all_gather_object`.
- DistributedDataParallel refuses device numbers for a model on the CPU: it gets none.
- fairseq starts workers itself, one per GPU. Where there is none it stops with a bare assertion or, with
  `--distributed-init-method`, trains nothing and reports success: an error that names torchrun.
- A finished process leaves its process groups to the interpreter's exit. A thread of gloo's that releases its last
  piece of work just then wants the interpreter, cannot have it any more and aborts the process ("terminate called
  without an active exception"), which torchrun reports as a failure: groups are closed, their threads joined before.
"""

import gc
import os
from types import ModuleType
from typing import Any, List

import torch
import torch.distributed as dist
from torch.nn import parallel

from fairseq_modern.errors import UserError
from fairseq_modern.patching import names, wrap

TORCHRUN = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")


def patch(module: ModuleType) -> None:
    """Replace the functions of `fairseq.distributed.utils` that do not work without a GPU or with a current torch."""
    fairseq: Any = module

    if "load" in names(fairseq._broadcast_object_slow):

        @wrap(fairseq)
        def _broadcast_object_slow(original: Any, obj: Any, src_rank: int, group: Any, dist_device: Any) -> Any:
            if fairseq.use_xla():
                return original(obj, src_rank, group, dist_device)
            parcel = [obj if fairseq.get_rank(group) == src_rank else None]
            source = dist.get_global_rank(group, src_rank)
            dist.broadcast_object_list(parcel, src=source, group=group, device=dist_device)
            return parcel[0]

    if "ByteTensor" in names(fairseq.all_gather_list):

        @wrap(fairseq)
        def all_gather_list(original: Any, data: Any, group: Any = None, max_size: int = 16384) -> List[Any]:
            from fairseq.utils import move_to_cpu

            if group is None:
                group = fairseq.get_global_group()
            if fairseq.use_xla() or (torch.cuda.is_available() and dist.get_backend(group) == "nccl"):
                return original(data, group=group, max_size=max_size)
            gathered: List[Any] = [None] * fairseq.get_world_size(group)
            dist.all_gather_object(gathered, move_to_cpu(data), group=group)
            return gathered

    if "destroy_process_group" not in names(fairseq.distributed_main):

        @wrap(fairseq)
        def distributed_main(original: Any, *args: Any, **options: Any) -> None:
            already_open, end = dist.is_initialized(), None
            try:
                original(*args, **options)
            except SystemExit as asked:  # of all processes, which have waited for each other
                end = asked
            if dist.is_initialized() and not already_open:
                close_process_groups(fairseq)
            if end is not None:
                raise end

    @wrap(fairseq)
    def call_main(original: Any, cfg: Any, main: Any, **options: Any) -> Any:
        refuse_workers_without_gpu(cfg, fairseq.infer_init_method)
        return original(cfg, main, **options)


def close_process_groups(fairseq: Any) -> None:
    """Close all process groups of this process and join their threads.

    Args:
        fairseq: the module `fairseq.distributed.utils`, which keeps a group of its own.
    """
    vars(fairseq.get_global_group).pop("_global_group", None)
    dist.destroy_process_group()
    # the threads are joined when a group is freed, and a trainer that is part of a cycle still holds one
    gc.collect()


def patch_data_parallel(module: ModuleType) -> None:
    """Give `fairseq.models.distributed_fairseq_model` a DistributedDataParallel that takes models on the CPU."""
    if module.DistributedDataParallel is not parallel.DistributedDataParallel:
        return

    @wrap(module)
    def DistributedDataParallel(original: Any, module: Any, **options: Any) -> Any:
        if all(parameter.device.type == "cpu" for parameter in module.parameters()):
            options.update(device_ids=None, output_device=None)
        return original(module, **options)


def refuse_workers_without_gpu(cfg: Any, infer_init_method: Any) -> None:
    """Raise UserError if fairseq would start workers of its own on a machine that has no GPU for them."""
    training = cfg.distributed_training
    if cfg.common.tpu or torch.cuda.device_count() > 0:
        return
    if training.distributed_port > 0 or all(name in os.environ for name in TORCHRUN):
        infer_init_method(training)  # Slurm or torchrun may have started the processes
    alone = training.distributed_init_method is None and training.distributed_world_size <= 1
    if alone or training.distributed_no_spawn:
        return
    workers = training.distributed_world_size
    raise UserError(
        f"{workers} worker{'s' * (workers != 1)} asked for, but fairseq starts workers by itself only on GPUs and "
        f"finds none here; start them with torchrun: OMP_NUM_THREADS=1 torchrun --nproc_per_node {workers} "
        f"$(which fairseq-train) DATA ... --cpu --distributed-world-size {workers} --distributed-backend gloo"
    )
