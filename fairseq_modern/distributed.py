"""Defects of training in several processes. Check: the code of each function named below.

- Resuming fails: `torch.load` rejects the configuration that the first process sends (`_broadcast_object_slow`). The
  processes of a job can trust one another.
- `all_gather_list` needs a GPU, and `DistributedDataParallel` rejects device numbers for a model on the CPU.
- Without a GPU, fairseq cannot start workers: it fails an assertion or, with `--distributed-init-method`, trains
  nothing and exits with 0 (`call_main`). Here, the error names torchrun.
- Process groups stay open at exit, and a thread of gloo may abort the process ("terminate called without an active
  exception"), which torchrun reports as a failure (`distributed_main`).
"""

import gc
import os
from types import ModuleType
from typing import Any, List

import torch
import torch.distributed as dist

# before a group is open: its functions have the current group as a default argument, and would keep it open
import torch.distributed.nn.functional
from torch.nn import parallel

from fairseq_modern.errors import UserError
from fairseq_modern.patching import names, step, wrap

TORCHRUN = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")


def patch(module: ModuleType) -> None:
    """Wrap functions of `fairseq.distributed.utils`."""
    fairseq: Any = module

    if "load" in names(fairseq._broadcast_object_slow):

        @wrap(fairseq)
        def _broadcast_object_slow(original, obj, src_rank, group, dist_device):
            if fairseq.use_xla():
                return original(obj, src_rank, group, dist_device)
            objects = [obj if fairseq.get_rank(group) == src_rank else None]
            source = dist.get_global_rank(group, src_rank)
            dist.broadcast_object_list(objects, src=source, group=group, device=dist_device)
            return objects[0]

    if "ByteTensor" in names(fairseq.all_gather_list):

        @wrap(fairseq)
        def all_gather_list(original, data, group=None, max_size=16384):
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
        def distributed_main(original, *args, **options):
            already_open, exit_request = dist.is_initialized(), None
            try:
                original(*args, **options)
            except SystemExit as error:  # raised in all processes (`fault_tolerance.stopping`)
                exit_request = error.with_traceback(None)  # its frames refer to the trainer
            if dist.is_initialized() and not already_open:
                close_process_groups(fairseq)
            if exit_request is not None:
                raise exit_request


def close_process_groups(fairseq: Any) -> None:
    """Close all process groups of this process, one of which `fairseq.distributed.utils` has; join their threads."""
    vars(fairseq.get_global_group).pop("_global_group", None)
    # A trainer in a reference cycle refers to a group. If it had the last reference, freeing it would join the threads
    # of gloo without releasing the GIL, and wait forever for a thread that needs it
    gc.collect()
    dist.destroy_process_group()


def patch_data_parallel(module: ModuleType) -> None:
    """Wrap the `DistributedDataParallel` of `fairseq.models.distributed_fairseq_model`."""
    if module.DistributedDataParallel is not parallel.DistributedDataParallel:
        return

    @wrap(module)
    def DistributedDataParallel(original, module, **options):
        if all(parameter.device.type == "cpu" for parameter in module.parameters()):
            options.update(device_ids=None, output_device=None)
        return original(module, **options)


@step()
def check_workers(cfg: Any, infer_init_method: Any) -> None:
    """Raise UserError if fairseq would start workers on a machine without GPUs."""
    training = cfg.distributed_training
    if cfg.common.tpu or torch.cuda.device_count() > 0:
        return
    if training.distributed_port > 0 or all(name in os.environ for name in TORCHRUN):
        infer_init_method(training)  # Slurm or torchrun may have started the processes
    is_single = training.distributed_init_method is None and training.distributed_world_size <= 1
    if is_single or training.distributed_no_spawn:
        return
    workers = training.distributed_world_size
    raise UserError(
        f"--distributed-world-size {workers} needs GPUs, but torch finds none. To train on CPUs, use torchrun: "
        f"OMP_NUM_THREADS=1 torchrun --nproc_per_node {workers} $(which fairseq-train) DATA ... --cpu "
        f"--distributed-world-size {workers} --distributed-backend gloo"
    )
