"""Signal handlers: when they are set, what they do, and how workers receive signals."""

import multiprocessing
import os
import signal
import time
from types import SimpleNamespace

import pytest
from torch.multiprocessing import ProcessExitedException

from fairseq_modern import fault_tolerance
from fairseq_modern.fault_tolerance import stopping, workers


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
    monkeypatch.setattr(fault_tolerance, "is_on", lambda: on)
    utils = SimpleNamespace(load_checkpoint=on_sigterm, save_checkpoint=None)
    stopping.patch(utils)
    utils.load_checkpoint()
    assert on_sigterm() == signal.SIG_DFL, "loading a checkpoint is not training"

    def main():
        utils.load_checkpoint()
        return on_sigterm()

    train = SimpleNamespace(main=main, validate_and_save=None, checkpoint_utils=utils)
    stopping.patch_train(train)
    assert train.main() == (stopping.request_stop if on else signal.SIG_DFL)
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


def test_other_handlers_stay(default_action):
    def handler(*arguments):
        pass

    signal.signal(signal.SIGTERM, handler)
    stopping.set_handlers()
    stopping.reset_handlers()
    assert on_sigterm() is handler


def test_workers_receive_the_signal_and_their_status_is_returned(default_action):
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
