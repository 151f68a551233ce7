"""Workers: answers, problems, limits, and lives after deaths."""

import mmap
import os
import time

import pytest

from experiments.studies import constraint_workers
from experiments.studies.constraint_workers import Outcome, Worker


@pytest.fixture(scope="module")
def worker():
    with Worker({"DECODAX_TEST": "set"}, one_core=True) as running:
        yield running


def test_calls_are_answered_by_one_process(worker):
    """Its environment and core are its own; planted: this process has neither."""
    first = worker.call(30, os.getpid)
    assert first == worker.call(30, os.getpid) and first.value != os.getpid()
    assert worker.call(30, os.getenv, "DECODAX_TEST") == Outcome("set")
    assert "DECODAX_TEST" not in os.environ
    if hasattr(os, "sched_getaffinity"):
        assert len(worker.call(30, os.sched_getaffinity, 0).value) == 1


def test_errors_are_problems(worker):
    """The process lives on."""
    before = worker.call(30, os.getpid)
    assert worker.call(30, int, "x").problem.startswith("ValueError: invalid literal")
    assert worker.call(30, os.getpid) == before


def test_deaths_and_limits_start_another_process(worker):
    """Planted: a call that hangs, and one that ends the process."""
    starts = worker.starts
    began = time.monotonic()
    assert worker.call(0.2, time.sleep, 60) == Outcome(None, "over 0.2 s")
    assert time.monotonic() - began < 30 and not worker.is_running
    assert worker.call(30, os._exit, 1) == Outcome(None, "the process died")
    assert worker.call(30, abs, -1) == Outcome(1) and worker.starts == starts + 2


def test_the_peak_of_memory_begins_anew():
    """Planted: the peak of an array that is gone: a map, which no heap holds on to."""
    constraint_workers.forget_peak()
    before = constraint_workers.memory("VmHWM")
    if before != before:
        pytest.skip("no /proc")
    block = mmap.mmap(-1, 64 * 2**20)
    for at in range(0, len(block), mmap.PAGESIZE):
        block[at] = 1
    assert constraint_workers.memory("VmHWM") > before + 50
    block.close()
    constraint_workers.forget_peak()
    assert constraint_workers.memory("VmHWM") < before + 50
