"""Several processes: sharing state, closing groups, and errors where fairseq cannot start workers."""

import contextlib
import pickle
from types import SimpleNamespace

import pytest
import torch
from fairseq.distributed import utils

import fairseq_modern.distributed as patches
from fairseq_modern.errors import UserError
from tests.common import free_port, run
from tests.fairseq import forked

TWO_RANKS = """
import pickle, sys
import torch, torch.distributed as dist
from omegaconf import OmegaConf
from fairseq.distributed import utils
from fairseq_modern.distributed import close_process_groups

dist.init_process_group("gloo")
rank, group, cpu = dist.get_rank(), utils.get_global_group(), torch.device("cpu")

# resuming: rank 0 sends its state, with a configuration in it, to the others
state = {"cfg": OmegaConf.create({"width": 8}), "model": {"w": torch.arange(4.0)}, "n": [1, (2, None)]}
for source in (0, 1):
    got = utils.broadcast_object(state if rank == source else None, source, group, cpu)
    assert got["cfg"].width == 8 and got["model"]["w"].tolist() == [0, 1, 2, 3] and got["n"] == [1, (2, None)], got

# unpatched, the receiver fails
try:
    utils._broadcast_object_slow.__wrapped__(state["cfg"] if rank == 0 else None, 0, group, cpu)
    rejected = False
except pickle.UnpicklingError:
    rejected = True
assert rejected == (rank == 1), (rank, rejected)

# gathering: objects of any type and size, in the order of the ranks
for data in ({"rank": rank, "tensor": torch.full((2,), float(rank))}, [rank] * 20000):
    gathered = utils.all_gather_list(data)
    assert len(gathered) == 2
    assert [g["rank"] if isinstance(g, dict) else g[0] for g in gathered] == [0, 1], gathered
print("rank", rank, "is done")
del group
close_process_groups(utils)
"""


def test_two_ranks_share_state_and_gather(tmp_path):
    script = tmp_path / "ranks.py"
    script.write_text(TWO_RANKS)
    port = ["--master_addr", "127.0.0.1", "--master_port", free_port()]
    assert run("torchrun", "--nproc_per_node", 2, *port, script).stdout.count("is done") == 2


@pytest.mark.parametrize(("device", "expected"), [("cpu", None), ("cuda:1", [1])])
def test_device_numbers_are_for_models_on_gpus(device, expected, monkeypatch):
    received = {}
    monkeypatch.setattr(torch.nn.parallel, "DistributedDataParallel", lambda module, **more: received.update(more))
    fairseq = SimpleNamespace(DistributedDataParallel=torch.nn.parallel.DistributedDataParallel)
    patches.patch_data_parallel(fairseq)
    model = SimpleNamespace(parameters=lambda: [SimpleNamespace(device=torch.device(device))])
    fairseq.DistributedDataParallel(module=model, device_ids=[1], output_device=1, bucket_cap_mb=25)
    assert received == {"device_ids": expected, "output_device": expected and 1, "bucket_cap_mb": 25}


@pytest.fixture
def alone(monkeypatch):
    """A machine without a GPU, not under torchrun."""
    for name in patches.TORCHRUN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


def config(workers, **options):
    cfg = forked.training_config("checkpoints")
    cfg.distributed_training.update(distributed_world_size=workers, **options)
    cfg.common.cpu = True
    return cfg


@pytest.mark.parametrize("method", [None, "tcp://127.0.0.1:1"])
def test_rejects_workers_without_gpus_and_names_the_torchrun_command(method, alone):
    calls = []
    with pytest.raises(UserError, match=r"size 2 needs GPUs.* torchrun --nproc_per_node 2 .*--cpu"):
        utils.call_main(config(2, distributed_init_method=method), calls.append)
    assert calls == []


def infer_slurm(training):
    training.distributed_no_spawn = True
    training.distributed_init_method = "tcp://first:1"


@pytest.mark.parametrize(
    ("options", "environment", "gpus", "infer", "is_rejected"),
    [
        ({}, {}, 2, None, False),
        ({"distributed_no_spawn": True}, {}, 0, None, False),
        ({"distributed_port": 1}, {}, 0, infer_slurm, False),
        ({"distributed_port": 1}, {}, 0, lambda training: None, True),  # without Slurm
        ({}, dict.fromkeys(patches.TORCHRUN, "2"), 0, utils.infer_init_method, False),
    ],
    ids=["GPUs", "started", "Slurm", "no Slurm", "torchrun"],
)
def test_accepts_workers_with_gpus_and_those_of_slurm_and_torchrun(
    options, environment, gpus, infer, is_rejected, alone, monkeypatch
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with pytest.raises(UserError, match="size 2 needs GPUs") if is_rejected else contextlib.nullcontext():
        patches.check_workers(config(2, **options), infer)


def test_an_error_with_python_m_is_one_line(tiny_data, tiny_run):
    flags = ["--path", tiny_run / "checkpoint_best.pt", "--cpu", "--distributed-world-size", 2]
    done = run("python", "-m", "fairseq_cli.validate", tiny_data, *flags, check=False)
    assert done.returncode == 1
    assert "fairseq_cli.validate: error: --distributed-world-size 2 needs GPUs" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_training_function_can_be_pickled():
    from fairseq_cli import train

    assert pickle.loads(pickle.dumps(train.main)) is train.main


ONE_RANK = """
import sys
import torch.distributed as dist
from fairseq.distributed import utils
from omegaconf import OmegaConf

def config(port):
    return OmegaConf.create({
        "common": {"cpu": True, "tpu": False, "model_parallel_size": 1},
        "distributed_training": {
            "distributed_backend": "gloo", "distributed_init_method": f"tcp://127.0.0.1:{port}",
            "distributed_world_size": 1, "distributed_rank": 0, "device_id": 0,
        },
    })

seen = []
for port in sys.argv[1:3]:  # two runs in one process, as with Hydra's --multirun
    utils.distributed_main(0, lambda cfg: seen.append(utils.get_world_size(utils.get_global_group())), config(port), {})
    assert not dist.is_initialized()
assert seen == [1, 1], seen
utils.distributed_main.__wrapped__(0, lambda cfg: None, config(sys.argv[3]), {})
assert dist.is_initialized(), "unpatched, the group stays open"
dist.destroy_process_group()
"""


def test_a_finished_process_closes_its_group(tmp_path):
    """At the interpreter's exit, gloo's threads sometimes abort the process."""
    (tmp_path / "one_rank.py").write_text(ONE_RANK)
    run("python", tmp_path / "one_rank.py", free_port(), free_port(), free_port())
