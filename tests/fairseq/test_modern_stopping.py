"""Signals in one process: who hears what."""

import multiprocessing
import os
import signal
import sys
import time
from types import SimpleNamespace

import pytest
from torch.multiprocessing import ProcessExitedException

from fairseq_modern import survival
from fairseq_modern.survival import stopping, workers


@pytest.fixture
def default_action():
    previous = {number: signal.signal(number, usual) for number, usual in stopping.USUAL.items()}
    yield
    stopping.forget()
    for number, handler in previous.items():
        signal.signal(number, handler)


def load_and_look(monkeypatch, on, program="/usr/bin/fairseq-train", main=None):
    """What SIGTERM does once a checkpoint has been loaded, in a program with this `__main__`."""
    module = SimpleNamespace(load_checkpoint=lambda: "loaded", save_checkpoint=None)
    stopping.patch(module)
    with monkeypatch.context() as patch:
        patch.setattr(survival, "is_on", lambda: on)
        patch.setattr(sys, "argv", [program])
        patch.setitem(sys.modules, "__main__", main or SimpleNamespace())
        assert module.load_checkpoint() == "loaded"
    return signal.getsignal(signal.SIGTERM)


def training_script(loads):
    """fairseq's train script, as far as it goes: `main` loads a checkpoint."""
    return SimpleNamespace(validate_and_save=lambda *args: ([None], False), main=loads, checkpoint_utils=None)


def test_the_signals_are_heard_only_where_fairseq_trains(default_action, monkeypatch):
    """A copy of fairseq's train script ends at SIGTERM as it would without us, whether survival is on or not."""
    for on in (True, False):
        assert load_and_look(monkeypatch, on, "/home/me/copy.py", training_script(None)) == signal.SIG_DFL
        assert load_and_look(monkeypatch, on) == signal.SIG_DFL, "loading alone is not training"
    script = training_script(None)
    assert load_and_look(monkeypatch, False, "/lib/fairseq_cli/train.py", script) == signal.SIG_DFL
    assert load_and_look(monkeypatch, True, "/lib/fairseq_cli/train.py", script) == stopping.hear
    stopping.forget()
    for on, expected in ((False, signal.SIG_DFL), (True, stopping.hear)):
        train = training_script(lambda on=on: load_and_look(monkeypatch, on))
        stopping.patch_train(train)
        assert train.main() == expected
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


def test_ctrl_c_is_a_wish_until_training_ends_and_a_second_one_ends_at_once(default_action, capfd):
    alone = SimpleNamespace(data_parallel_world_size=1)
    stopping.listen()
    os.kill(os.getpid(), signal.SIGINT)
    assert stopping.is_asked_to_stop(alone)
    assert "Ctrl-C again stops at once" in capfd.readouterr().err
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    stopping.forget()
    assert not stopping.is_asked_to_stop(alone)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_others_who_handle_sigterm_are_left_alone(default_action):
    def others(*arguments):
        pass

    signal.signal(signal.SIGTERM, others)
    stopping.listen()
    stopping.forget()
    assert signal.getsignal(signal.SIGTERM) is others


def test_workers_that_fairseq_starts_get_the_signal_and_their_status_is_passed_on(default_action):
    worker = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(100,), daemon=True)
    with workers.stoppable():
        worker.start()
        os.kill(os.getpid(), signal.SIGTERM)
        worker.join()
        assert worker.exitcode == -signal.SIGTERM

    def end_with(status):
        with workers.stoppable():
            raise ProcessExitedException("", error_index=0, error_pid=1, exit_code=status)

    with pytest.raises(SystemExit) as stopped:
        end_with(stopping.EXIT_STATUS)
    assert stopped.value.code == 75
    with pytest.raises(ProcessExitedException):
        end_with(1)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
