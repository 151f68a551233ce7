"""Progress where output is no terminal: what stands in a line, and when it comes."""

import io
import sys
import threading

from experiments import console
from training import progress_lines


class Time:
    """A clock that a test sets."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_the_time_left_is_that_of_pieces_computed_now():
    """Stored pieces take no time; planted: with them it comes out too short."""
    time = Time()
    clock = progress_lines.Clock(shortest=0.05, now=time)
    planted = progress_lines.Clock(now=time)
    for done, seconds in ((1, 0.001), (2, 0.002), (3, 60.0), (4, 120.0)):
        time.seconds = seconds
        clock.reach(done)
        planted.reach(done)
    assert clock.text(10) == "2:00 so far, about 6:00 left"
    assert planted.text(10) == "2:00 so far, about 3:00 left"
    time.seconds = 150.0
    assert clock.text(10) == "2:30 so far, about 5:30 left"
    time.seconds = 1000.0  # the piece takes longer than six of the others
    assert clock.text(10) == "16:40 so far"
    assert progress_lines.Clock(now=time).text(10) == "0:00 so far"
    assert progress_lines.span(3725) == "1:02:05"


class Caught(io.StringIO):
    """A stream that notes when `awaited` has come."""

    def __init__(self, awaited: str, terminal: bool = False):
        super().__init__()
        self.awaited, self.terminal = awaited, terminal
        self.came = threading.Event()

    def isatty(self) -> bool:
        return self.terminal

    def flush(self) -> None:
        if self.awaited in self.getvalue():
            self.came.set()


def test_lines_come_while_a_piece_is_in_work(monkeypatch):
    """From another thread; planted: none on a terminal, where there is a bar."""
    monkeypatch.setattr(progress_lines, "EVERY", 0.001)
    out = Caught("plain-code: 2 of 3, ")
    monkeypatch.setattr(sys, "stderr", out)
    with console.bar(3, "read bandwidth") as bar:
        bar.done()
        bar.doing("plain-code")
        assert out.came.wait(30)
    size = len(out.getvalue())
    threading.Event().wait(0.01)
    assert len(out.getvalue()) == size  # it is over
    terminal = Caught("x", terminal=True)
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_lines.Lines(lambda: "x") as lines:
        threading.Event().wait(0.01)
    assert not lines.wanted and terminal.getvalue() == ""
