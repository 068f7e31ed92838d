"""What ends a run between two clients."""

import os
import signal

import pytest

from flcore.utils import interrupt


def send(name):
    os.kill(os.getpid(), getattr(signal, name))


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"])
def test_a_signal_asks_for_the_end_and_names_itself(name, capfd):
    with interrupt.handled():
        interrupt.check()
        send(name)
        assert interrupt.asked() and f"{name}: stopping when the clients now at work are done" in capfd.readouterr().err
        with pytest.raises(KeyboardInterrupt, match="interrupted; nothing is left"):
            interrupt.check("nothing is left")
    assert not interrupt.asked()


def test_only_a_second_ctrl_c_stops_at_once():
    with interrupt.handled():
        for name in ("SIGUSR1", "SIGTERM", "SIGHUP", "SIGTERM"):  # as Slurm and a closed session send them
            send(name)
        with pytest.raises(KeyboardInterrupt):
            send("SIGINT")


def test_what_the_caller_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with interrupt.handled():
            send("SIGHUP")
            assert not interrupt.asked()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
