"""Runners of several nodes: they wait for each other, and the failure of one ends the others."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest

from fairseq_modern.errors import UserError
from recipes.runner import launch
from recipes.runner.machine import Machine
from recipes.runner.nodes import joined
from tests.common import free_port


def machines(number):
    master = f"127.0.0.1:{free_port()}"
    return [Machine(nodes=number, node_rank=rank, master=master) for rank in range(number)]


@pytest.mark.parametrize(
    ("rank", "message"),
    [(0, "node 1, 2 must connect to {} within 1 s"), (1, "the first node must be reached at {} within 1 s")],
)
def test_a_missing_node_is_an_error(rank, message):
    machine = machines(3)[rank]
    with pytest.raises(UserError) as error, joined(machine, 1):
        pass
    assert message.format(machine.master) in str(error.value)


def test_a_node_that_ends_while_the_first_one_prepares_is_an_error():
    first, second = machines(2)

    def fail():
        with pytest.raises(UserError, match="no data"), joined(first, 60):
            raise UserError("no data")

    thread = threading.Thread(target=fail)
    thread.start()
    with pytest.raises(UserError, match=r"node 0 \(127.0.0.1\) has failed"), joined(second, 60) as others:
        others.next_stage(dict)
    thread.join(60)


@pytest.mark.parametrize("ending", [None, SystemExit(launch.STOPPED), SystemExit(1), UserError("bad")])
@pytest.mark.parametrize("failing", [0, 2])
def test_the_failure_of_a_node_ends_all_others(failing, ending):
    """Also a third node, whose only connection is to the first one. Control: a node that has finished or stopped."""
    nodes, stages, errors, together = machines(3), [], {}, threading.Barrier(3)

    def has_ended(connection):
        try:
            return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return False

    def node(machine):
        rank = machine.node_rank
        try:
            with joined(machine, 60) as others:
                if rank:
                    stages.append(others.next_stage(dict))
                else:
                    others.start(40, False, {})
                together.wait(60)
                others.check()  # nobody has ended
                together.wait(60)
                if rank == failing and ending:
                    raise ending
                while rank != failing and not has_ended(others.sockets[0 if rank else 2]):
                    others.check()
        except BaseException as error:
            errors[rank] = error

    is_failure = ending is not None and getattr(ending, "code", 1) != launch.STOPPED
    threads = [threading.Thread(target=node, args=(machine,), daemon=True) for machine in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len({machine.torchrun_port for machine in nodes}) == 1
    assert [(stage.end, stage.resumes) for stage in stages] == [(40, False)] * 2
    assert errors.pop(failing, None) is ending
    expected = {rank for rank in range(3) if rank != failing} if is_failure else set()
    assert set(errors) == expected
    assert all(isinstance(error, UserError) and "has failed" in str(error) for error in errors.values())


def test_training_is_stopped_if_another_node_has_failed(tmp_path):
    child = "import signal, sys; signal.signal(15, lambda *_: (print('saved'), sys.exit(75)))\n"
    child += "print('begun', flush=True); signal.pause()"
    log = tmp_path / "log"

    def check():
        if "begun" in log.read_text():
            raise UserError("node 1 has failed")

    with pytest.raises(UserError, match="node 1 has failed"):
        launch.run_logged([sys.executable, "-c", child], log, check=check)
    assert log.read_text() == "begun\nsaved\n"


def test_a_node_that_was_stopped_saves_even_if_another_node_fails_meanwhile(tmp_path):
    child = "import signal, sys, time\n"
    child += "def stop(*_): signal.signal(15, signal.SIG_DFL); print('stopping', flush=True); time.sleep(0.3)\n"
    child += "signal.signal(15, stop); print('begun', flush=True); signal.pause(); print('saved'); sys.exit(75)"
    log = tmp_path / "log"

    def check():
        if "stopping" in log.read_text():
            raise UserError("node 1 has failed")
        if "begun" in log.read_text() and not sent:
            sent.append(os.kill(os.getpid(), signal.SIGTERM))

    sent = []
    with pytest.raises(SystemExit) as request:
        launch.run_logged([sys.executable, "-c", child], log, check=check)
    assert request.value.code == launch.STOPPED
    assert log.read_text() == "begun\nstopping\nsaved\n"


def test_processes_of_a_recipe_write_utf8_in_any_locale(tmp_path, monkeypatch):
    """Otherwise a finished training run could not be translated. The control has the locale of the recipe."""
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    command = [sys.executable, "-c", "print('▁ä')"]
    assert subprocess.run(command, capture_output=True).returncode == 1
    assert launch.run_logged(command, tmp_path / "log") == 0
    assert (tmp_path / "log").read_text(encoding="utf-8") == "▁ä\n"


def test_processes_of_a_recipe_do_not_belong_to_an_outer_job(tmp_path, monkeypatch):
    """The reference is the environment that torchrun gives its processes."""
    program = f"import json, os; json.dump(dict(os.environ), open({str(tmp_path / 'inner')!r}, 'w'))"
    (tmp_path / "program.py").write_text(program)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "1"]
    subprocess.run([*torchrun, tmp_path / "program.py"], check=True, capture_output=True)
    inner = json.loads((tmp_path / "inner").read_text())
    assert {"MASTER_ADDR", "WORLD_SIZE", "RANK", "LOCAL_RANK"} <= set(inner) - set(os.environ)  # control
    # MASTER_PORT is also a setting of recipes; the others do not describe the job
    kept = {"MASTER_PORT", "OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "COLUMNS", "LINES", "LC_CTYPE"}
    of_job = {"PET_NNODES", *inner} - {*os.environ, *kept}
    for name in of_job:
        monkeypatch.setenv(name, inner.get(name, "2"))
    monkeypatch.setenv("SURVIVES", "yes")
    assert launch.run_logged([sys.executable, "-c", program]) == 0
    seen = json.loads((tmp_path / "inner").read_text())
    assert seen["SURVIVES"] == "yes"
    assert not of_job & set(seen)
