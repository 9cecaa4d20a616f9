"""Several processes: gathering objects, closing groups, starting workers; signal handlers."""

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from fairseq.distributed import utils
from torch.multiprocessing import ProcessExitedException

import fairseq_modern.distributed as patches
from fairseq_modern import fault_tolerance, wrappers
from fairseq_modern.errors import UserError
from fairseq_modern.fault_tolerance import stopping, workers
from fairseq_modern.processes import STOPPED
from tests import forked
from tests.commands import train_command
from tests.common import ROOT, free_port, run
from tests.models.cases import SMALL

TWO_RANKS = """
import gc, os, time
import torch, torch.distributed as dist
from fairseq.distributed import utils
from fairseq_modern.distributed import close_process_groups

def train(rank):
    trainer = {}
    trainer["model"] = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    trainer["itself"] = trainer
    trainer["model"](torch.ones(2, 4)).sum().backward()
    if rank:
        time.sleep(1)
    dist.all_reduce(torch.ones(4), async_op=True)  # of rank 0: still waits when the groups are closed

gc.disable()
dist.init_process_group("gloo")
rank, threads = dist.get_rank(), len(os.listdir("/proc/self/task"))
assert threads > 1
for data in ({"rank": rank, "tensor": torch.full((2,), float(rank))}, [rank] * 20000):
    gathered = utils.all_gather_list(data)
    assert [g["rank"] if isinstance(g, dict) else g[0] for g in gathered] == [0, 1], gathered
train(rank)
close_process_groups(utils)
print("rank", rank, "has", len(os.listdir("/proc/self/task")), "thread")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts threads in /proc")
def test_two_ranks_gather_objects_and_join_the_threads_of_their_groups(tmp_path):
    """With a trainer in a reference cycle, and while a thread needs the GIL to free its tensor."""
    script = tmp_path / "ranks.py"
    script.write_text(TWO_RANKS)
    port = ["--master_addr", "127.0.0.1", "--master_port", free_port()]
    assert run("torchrun", "--nproc_per_node", 2, *port, script, timeout=60).stdout.count("has 1 thread\n") == 2


@pytest.mark.parametrize(("device", "expected"), [("cpu", None), ("cuda:1", [1])])
def test_device_numbers_are_for_models_on_gpus(device, expected, monkeypatch):
    received = {}
    monkeypatch.setattr(torch.nn.parallel, "DistributedDataParallel", lambda module, **more: received.update(more))
    fairseq = SimpleNamespace(DistributedDataParallel=torch.nn.parallel.DistributedDataParallel)
    patches.patch_data_parallel(fairseq)
    model = SimpleNamespace(parameters=lambda: [SimpleNamespace(device=torch.device(device))])
    fairseq.DistributedDataParallel(module=model, device_ids=[1], output_device=1, bucket_cap_mb=25)
    assert received == {"device_ids": expected, "output_device": expected and 1, "bucket_cap_mb": 25}


def infer_slurm(training):
    training.distributed_no_spawn = True
    training.distributed_init_method = "tcp://first:1"


@pytest.mark.parametrize(
    ("options", "environment", "gpus", "infer", "is_rejected"),
    [
        ({}, {}, 0, None, True),
        ({"distributed_init_method": "tcp://127.0.0.1:1"}, {}, 0, None, True),
        ({}, {}, 2, None, False),
        ({"distributed_no_spawn": True}, {}, 0, None, False),
        ({"distributed_port": 1}, {}, 0, infer_slurm, False),
        ({"distributed_port": 1}, {}, 0, lambda training: None, True),  # without Slurm
        ({}, dict.fromkeys(patches.TORCHRUN, "2"), 0, utils.infer_init_method, False),
    ],
    ids=["alone", "address", "GPUs", "started", "Slurm", "no Slurm", "torchrun"],
)
def test_workers_need_gpus_slurm_or_torchrun(options, environment, gpus, infer, is_rejected, monkeypatch):
    for name in patches.TORCHRUN:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    cfg = forked.training_config("checkpoints")
    cfg.distributed_training.update(distributed_world_size=2, **options)
    error = pytest.raises(UserError, match=r"size 2 needs GPUs.* torchrun --nproc_per_node 2 .*--cpu")
    with error if is_rejected else contextlib.nullcontext():
        patches.check_workers(cfg, infer)


def test_an_error_with_python_m_is_one_line(tiny_data, tiny_run):
    flags = ["--path", tiny_run / "checkpoint_best.pt", "--cpu", "--distributed-world-size", 2]
    done = run("python", "-m", "fairseq_cli.validate", tiny_data, *flags, check=False)
    assert done.returncode == 1
    assert "fairseq_cli.validate: error: --distributed-world-size 2 needs GPUs" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_training_function_can_be_pickled():
    from fairseq_cli import train  # configures logging

    assert pickle.loads(pickle.dumps(train.main)) is train.main


ONE_RANK = """
import sys
import torch.distributed as dist
from fairseq.distributed import utils
from tests import forked

def train(distributed_main, main, port):
    cfg = forked.training_config("checkpoints")
    cfg.common.cpu = True
    cfg.model = {}
    cfg.distributed_training.distributed_world_size = 1
    cfg.distributed_training.distributed_backend = "gloo"
    cfg.distributed_training.distributed_init_method = f"tcp://127.0.0.1:{port}"
    distributed_main(0, main, cfg, {})

seen = []
for port in sys.argv[1:3]:  # two runs in one process, as with Hydra's --multirun
    train(utils.distributed_main, lambda cfg: seen.append(utils.get_global_group().size()), port)
    assert not dist.is_initialized()
assert seen == [1, 1], seen
train(utils.distributed_main.__wrapped__, lambda cfg: None, sys.argv[3])
assert dist.is_initialized(), "unpatched, the group stays open"
dist.destroy_process_group()
"""


def test_a_finished_process_closes_its_group():
    """At the interpreter's exit, gloo's threads sometimes abort the process."""
    run("python", "-c", ONE_RANK, free_port(), free_port(), free_port(), cwd=ROOT)


# --- signals -------------------------------------------------------------------------------------------------------


@pytest.fixture
def default_action():
    previous = {number: signal.signal(number, default) for number, default in stopping.DEFAULT_HANDLERS.items()}
    yield
    stopping.reset_handlers()
    for number, handler in previous.items():
        signal.signal(number, handler)


def on_sigterm():
    return signal.getsignal(signal.SIGTERM)


@pytest.mark.parametrize("on", [True, False])
def test_signals_are_handled_during_training_only(default_action, monkeypatch, on):
    from fairseq_cli import train  # configures logging

    monkeypatch.setattr(fault_tolerance, "is_on", lambda: on)
    cfg = forked.training_config("checkpoints")
    cfg.dataset.disable_validation = True
    program = SimpleNamespace(**vars(train))
    trainer = SimpleNamespace(get_num_updates=lambda: 0, _previous_training_time=0)
    program.train, program.main = (lambda *_: on_sigterm()), (lambda cfg: program.train(cfg, trainer, None, None))
    wrappers.patch_train(program)
    assert program.main(cfg) == (stopping.request_stop if on else signal.SIG_DFL)
    assert on_sigterm() == signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


def test_ctrl_c_asks_to_stop_and_a_second_one_interrupts(default_action, capfd):
    alone = SimpleNamespace(data_parallel_world_size=1)
    stopping.set_handlers()
    os.kill(os.getpid(), signal.SIGINT)
    assert stopping.must_stop(alone)
    assert "press Ctrl-C again to stop at once" in capfd.readouterr().err
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    stopping.reset_handlers()
    assert not stopping.must_stop(alone)


def test_a_signal_may_arrive_at_any_line_of_the_handler(default_action):
    """torchrun, Slurm and the recipes send SIGTERM to processes whose group has received it already."""
    lines = []

    def second_signal(frame, event, argument):
        sys.settrace(None)
        lines.append(frame.f_lineno)
        stopping.request_stop(signal.SIGTERM, None)
        sys.settrace(second_signal)
        return second_signal

    def first_signal():
        sys.settrace(second_signal)
        stopping.request_stop(signal.SIGTERM, None)
        sys.settrace(None)

    thread = threading.Thread(target=first_signal, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    assert len(lines) > 1
    assert stopping.must_stop(SimpleNamespace(data_parallel_world_size=1))


def test_other_handlers_stay(default_action):
    def handler(*arguments):
        pass

    signal.signal(signal.SIGTERM, handler)
    stopping.set_handlers()
    stopping.reset_handlers()
    assert on_sigterm() is handler


def test_a_user_dir_enables_the_patch_of_workers(tmp_path, monkeypatch):
    """fairseq-hydra-train would import it later."""
    monkeypatch.setattr(fault_tolerance, "_enabled", False)
    cfg = forked.training_config(tmp_path)
    code = "from fairseq_modern import fault_tolerance\nfault_tolerance.enable()\n"
    cfg.common.user_dir = str(forked.user_dir(tmp_path / "enables_fault_tolerance", code))
    calls = []
    monkeypatch.setattr(workers, "die_with_torchrun", lambda: calls.append("worker"))
    utils.call_main(cfg, lambda cfg: calls.append("main"))
    assert calls == ["worker", "main"]


@pytest.mark.parametrize("job", [None, "1"])
def test_workers_of_torchrun_die_with_it(job, monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    if job:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", job)
    parents = []
    monkeypatch.setattr(workers, "die_with_parent", parents.append)
    workers.die_with_torchrun()
    assert parents == [os.getppid()] * bool(job)


def test_workers_receive_the_signal_and_their_status_is_returned(default_action):
    worker = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(100,), daemon=True)
    with workers.stoppable():
        worker.start()
        os.kill(os.getpid(), signal.SIGTERM)
        worker.join()
        assert worker.exitcode == -signal.SIGTERM

    for status, raised in ((STOPPED, SystemExit), (1, ProcessExitedException)):
        with pytest.raises(raised) as stopped, workers.stoppable():
            raise ProcessExitedException("", error_index=0, error_pid=1, exit_code=status)
        assert status == 1 or stopped.value.code == 75
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


ON_A_GPU_MACHINE = """
import sys, torch
def gpu(*arguments):
    raise RuntimeError("the GPU was used")
torch.cuda.is_available = lambda: True
torch.cuda.get_rng_state = torch.cuda.current_device = gpu
from fairseq_cli.train import cli_main
sys.argv = ["fairseq-train", *sys.argv[1:]]
cli_main()
assert torch.cuda.is_available()
"""


def test_training_with_cpu_leaves_gpus_alone(tiny_data, tmp_path):
    options = {"max_update": 1, "clip_norm": 1.0, "no_save": True, "disable_validation": True, **SMALL}
    arguments = train_command(tiny_data, tmp_path, **options)[1:]
    run("python", "-c", ON_A_GPU_MACHINE, *arguments)
    skipped = {"FAIRSEQ_MODERN_SKIP": "cpu_training"}
    failed = run("python", "-c", ON_A_GPU_MACHINE, *arguments, env=skipped, check=False)
    assert failed.returncode != 0
    assert failed.stderr.splitlines()[-1] == "RuntimeError: the GPU was used"  # control
