import os
import signal
import threading

import pytest

from client.stopping import Stopped, stop_requests


def test_a_signal_raises_only_where_it_is_looked_for() -> None:
    with stop_requests() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        reached = True
        with pytest.raises(Stopped) as stopped:
            stop.check()
    assert reached
    assert stopped.value.signal_number == signal.SIGINT


def test_a_sleep_is_cut_short() -> None:
    with stop_requests() as stop:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
        with pytest.raises(Stopped, match="SIGTERM"):
            stop.sleep(30)


def test_a_second_ctrl_c_changes_nothing() -> None:
    with stop_requests() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signal_number == signal.SIGTERM


def test_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with stop_requests():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
