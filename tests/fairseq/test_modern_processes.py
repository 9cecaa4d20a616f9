"""Several processes: sharing state, closing groups, and clear refusals where fairseq cannot work."""

import os
import pickle
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
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

# as published, only the sender is content
try:
    utils._broadcast_object_slow.__wrapped__(state["cfg"] if rank == 0 else None, 0, group, cpu)
    refused = False
except pickle.UnpicklingError:
    refused = True
assert refused == (rank == 1), (rank, refused)

# gathering: anything, in the order of the ranks, of any size
for data in ({"rank": rank, "tensor": torch.full((2,), float(rank))}, [rank] * 20000):
    gathered = utils.all_gather_list(data)
    assert len(gathered) == 2
    assert [g["rank"] if isinstance(g, dict) else g[0] for g in gathered] == [0, 1], gathered
print("rank", rank, "is done")
del group
close_process_groups(utils)
"""


def torchrun(*arguments, **options):
    port = ["--master_addr", "127.0.0.1", "--master_port", free_port()]
    return run("torchrun", "--nproc_per_node", 2, *port, *arguments, **options)


def test_two_ranks_share_state_and_gather(tmp_path):
    script = tmp_path / "ranks.py"
    script.write_text(TWO_RANKS)
    assert torchrun(script).stdout.count("is done") == 2


@pytest.mark.parametrize(("device", "expected"), [("cpu", None), ("cuda:1", [1])])
def test_device_numbers_are_for_models_on_gpus(device, expected, monkeypatch):
    seen = {}
    monkeypatch.setattr(torch.nn.parallel, "DistributedDataParallel", lambda module, **options: seen.update(options))
    fairseq = SimpleNamespace(DistributedDataParallel=torch.nn.parallel.DistributedDataParallel)
    patches.patch_data_parallel(fairseq)
    model = SimpleNamespace(parameters=lambda: [SimpleNamespace(device=torch.device(device))])
    fairseq.DistributedDataParallel(module=model, device_ids=[1], output_device=1, bucket_cap_mb=25)
    assert seen == {"device_ids": expected, "output_device": expected and 1, "bucket_cap_mb": 25}


def test_gathering_over_nccl_stays_fairseqs_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(dist, "get_backend", lambda group: "nccl")
    monkeypatch.setattr(utils, "get_rank", lambda group: 0)
    monkeypatch.setattr(utils, "get_world_size", lambda group: 1)
    monkeypatch.setattr(utils, "all_reduce", lambda tensor, group: None)
    monkeypatch.setattr(torch.cuda, "ByteTensor", torch.ByteTensor)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    monkeypatch.setattr(dist, "all_gather_object", None)
    assert utils.all_gather_list({"a": 1}, group="all") == [{"a": 1}]


# --- refusals ------------------------------------------------------------------------------------------------------


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
def test_workers_without_gpus_are_refused_with_the_command_that_works(method, alone):
    calls = []
    with pytest.raises(UserError, match=r"2 workers .* torchrun --nproc_per_node 2 .*--distributed-backend gloo"):
        utils.call_main(config(2, distributed_init_method=method), calls.append)
    assert calls == []


def test_workers_that_something_else_started_or_that_have_gpus_are_fairseqs_business(alone, monkeypatch):
    def infer(training):
        training.distributed_no_spawn = True
        training.distributed_init_method = "tcp://first:1"

    patches.refuse_workers_without_gpu(config(2, distributed_no_spawn=True), None)
    patches.refuse_workers_without_gpu(config(2, distributed_port=1), infer)  # Slurm
    with pytest.raises(UserError, match="2 workers asked for"):
        patches.refuse_workers_without_gpu(config(2, distributed_port=1), lambda training: None)  # no Slurm after all
    with monkeypatch.context() as patch:
        for name in patches.TORCHRUN:
            patch.setenv(name, "2")
        patches.refuse_workers_without_gpu(config(2), utils.infer_init_method)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    patches.refuse_workers_without_gpu(config(2), None)


def test_a_refusal_under_python_m_is_one_line(tiny_data, tiny_run):
    """What the tools themselves say is in test_mistakes."""
    flags = ["--path", tiny_run / "checkpoint_best.pt", "--cpu", "--distributed-world-size", 2]
    done = run("python", "-m", "fairseq_cli.validate", tiny_data, *flags, check=False)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("fairseq_cli.validate: error: 2 workers asked for")
    assert "Traceback" not in done.stderr


def test_the_training_function_can_be_sent_to_workers():
    from fairseq_cli import train

    assert pickle.loads(pickle.dumps(train.main)) is train.main
    assert os.path.basename(sys.modules[train.main.__module__].__file__) == "train.py"


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
for port in sys.argv[1:3]:  # twice in one process, as with Hydra's --multirun
    utils.distributed_main(0, lambda cfg: seen.append(utils.get_world_size(utils.get_global_group())), config(port), {})
    assert not dist.is_initialized()
assert seen == [1, 1], seen
utils.distributed_main.__wrapped__(0, lambda cfg: None, config(sys.argv[3]), {})
assert dist.is_initialized(), "as published, the group stays open"
dist.destroy_process_group()
"""


def test_a_finished_process_closes_its_group(tmp_path):
    """Left to the interpreter's exit, gloo's threads end a process with an abort now and then."""
    (tmp_path / "one_rank.py").write_text(ONE_RANK)
    run("python", tmp_path / "one_rank.py", free_port(), free_port(), free_port())
