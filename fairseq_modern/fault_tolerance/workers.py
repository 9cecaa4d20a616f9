"""Defect: SIGTERM to a process that has started workers, or SIGKILL to torchrun, leaves the workers running.

Check: fairseq starts workers itself, one per GPU; or the process runs under torchrun, on Linux.

SIGTERM is forwarded to the workers, and their exit status is returned. Workers of torchrun, each in its own session,
ask the kernel to be killed with torchrun; otherwise the next run finds its folder locked.
"""

import contextlib
import multiprocessing
import os
import signal
from typing import Any, Iterator

from fairseq_modern.fault_tolerance import stopping
from fairseq_modern.patching import step
from fairseq_modern.processes import STOPPED, die_with_parent


def forward_signal(signum: int, frame: Any) -> None:
    """Signal handler: send SIGTERM to the child processes, and remember the request."""
    for worker in multiprocessing.active_children():
        if worker.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGTERM)
    stopping.request_stop(signum, frame)


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Forward SIGTERM and Ctrl-C to the workers that the block starts, and raise Stopped if they stop."""
    import torch.multiprocessing

    stopping.set_handlers(forward_signal)
    try:
        yield
    except torch.multiprocessing.ProcessExitedException as error:
        if error.exit_code == STOPPED:
            raise stopping.Stopped from None
        raise
    finally:
        stopping.reset_handlers(forward_signal)


def die_with_torchrun() -> None:
    """Kill this process when the torchrun that started it, if any, ends for any reason."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        die_with_parent(os.getppid())


@step(contextlib.nullcontext())
def supervised(module: Any, cfg: Any) -> Any:
    """Around a training run: `die_with_torchrun`, or `stoppable` workers. `module`: `fairseq.distributed.utils`."""
    die_with_torchrun()
    training = cfg.distributed_training
    if training.distributed_init_method is None:
        module.infer_init_method(training)
    spawns = training.distributed_init_method is not None and not training.distributed_no_spawn
    return stoppable() if spawns else contextlib.nullcontext()
