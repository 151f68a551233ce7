"""SIGTERM: noted in a loop, raised elsewhere, never lost."""

import os
import signal
import sys
import threading

import pytest

from training.loop import (
    preemption,
)


def test_sigterm_is_noted_and_then_raised() -> None:
    """In a loop it waits; elsewhere it ends the process with the code for again."""
    with preemption.watch(), pytest.raises(preemption.Preempted) as caught:
        with preemption.Notice() as notice:
            assert not notice.reached(1)
            os.kill(os.getpid(), signal.SIGTERM)
            assert notice.reached(1)
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except Exception as error:  # planted: whoever passes over a bad file
            raise AssertionError("was taken for an error") from error
    assert caught.value.code == preemption.REQUEUE == 75


def test_a_second_ctrl_c_does_not_wait() -> None:
    """The first is noted in a loop, the second raised; an ignored one stays so."""
    with pytest.raises(KeyboardInterrupt), preemption.Notice() as notice:
        signal.raise_signal(signal.SIGINT)
        assert notice.reached(1)
        signal.raise_signal(signal.SIGINT)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with preemption.Notice() as notice:
            signal.raise_signal(signal.SIGINT)
            assert not notice.reached(1)  # planted: a handler of its own would note it
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_signal_where_exceptions_are_ignored_is_not_lost():
    """As in JAX's callback of the garbage collector; planted: a plain exception is."""

    class Collected:
        def __del__(self):
            signal.raise_signal(signal.SIGTERM)
            for _ in range(100):  # the handler runs in here
                pass

    with preemption.watch(), pytest.raises(preemption.Preempted):
        del_me = Collected()
        del del_me
        threading.Event().wait(10)

    def lost(number, frame):
        raise KeyError("lost")

    ignored = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "unraisablehook", ignored.append)
        with preemption._handling(lost):
            del_me = Collected()
            del del_me
    assert [type(found.exc_value) for found in ignored] == [KeyError]
