"""Workers that fairseq starts itself, one per GPU, and those that torchrun starts.

SIGTERM to the process that has started workers ends it and leaves them; here it is passed on to them, and their exit
status is passed back. torchrun killed by SIGKILL leaves its workers training, each in a session of its own, and the
next start finds their folder taken; here, on Linux, a worker asks to be killed with torchrun.
"""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
from types import ModuleType
from typing import Any, Iterator

from fairseq_modern import fault_tolerance
from fairseq_modern.fault_tolerance import stopping
from fairseq_modern.patching import wrap

PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>


def pass_on(signum: int, frame: Any) -> None:
    """Send SIGTERM to the processes that this one has started, and remember it."""
    for worker in multiprocessing.active_children():
        if worker.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGTERM)
    stopping.hear(signum, frame)


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Pass SIGTERM and Ctrl-C on to the workers that fairseq starts meanwhile, and end as they do if they stop."""
    import torch.multiprocessing

    stopping.listen(pass_on)
    try:
        yield
    except torch.multiprocessing.ProcessExitedException as error:
        if error.exit_code == stopping.EXIT_STATUS:
            raise stopping.Stopped from None
        raise
    finally:
        stopping.forget(pass_on)


def die_with_torchrun() -> None:
    """Have the kernel kill this process when the torchrun that started it is gone, however that came about."""
    if "TORCHELASTIC_RUN_ID" not in os.environ or not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # gone in between
        os.kill(os.getpid(), signal.SIGKILL)


def patch(module: ModuleType) -> None:
    """Wrap `fairseq.distributed.utils.call_main`."""

    @wrap(module)
    def call_main(original: Any, cfg: Any, main: Any, **options: Any) -> Any:
        if not fault_tolerance.is_on():
            return original(cfg, main, **options)
        die_with_torchrun()
        training = cfg.distributed_training
        if training.distributed_init_method is None:
            module.infer_init_method(training)
        spawns = training.distributed_init_method is not None and not training.distributed_no_spawn
        with stoppable() if spawns else contextlib.nullcontext():
            return original(cfg, main, **options)
