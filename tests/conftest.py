"""Compiled programs are kept between runs; long tests run when they are named."""

import collections
import ctypes
import gc
import itertools
import json
import os
import pathlib
import signal
from importlib import metadata

# Compiling is most of what the suite costs, and its models are small: the back end's
# own passes are left out (a third of the time; the graph passes, which decide what is
# fused and copied, are untouched), and jaxlib 0.10, which still can, writes code for
# fusions directly and not by way of MLIR (another third). Newer ones know no such flag
# and would end the process. Such code contracts a * b + c where it may, in one fusion
# and not in its neighbour, so that a value differs from itself: AVX, which cannot,
# keeps it whole. It is one module, not 32 that could compile side by side (seven loops:
# 12.5 s of processor time, 11.3 as one module). Everything else runs at the compiler's
# default. The flags are the same for all tests, so that they find each other's programs
# on disk.
os.environ["XLA_FLAGS"] = " ".join(
    [
        "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
        *[
            "--xla_cpu_use_fusion_emitters=false",
            "--xla_cpu_max_isa=AVX",
            "--xla_cpu_parallel_codegen_split_count=1",
        ]
        * metadata.version("jaxlib").startswith("0.10."),
        os.environ.get("XLA_FLAGS", ""),
    ]
)
# A shell's background jobs ignore SIGINT, and so would the tests of Ctrl-C in one.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# A program of several widths compiles for as long as some four of one; tests of widths
# ask for them.
os.environ.setdefault("DECODAX_WIDTH", "paper")
# The contracts of rewards run programs, of a line each.
os.environ.setdefault("DECODAX_ALLOW_EXECUTION", "1")
# Where libtpu is installed jax would look for a TPU, in every process.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

# Both workers and the processes that tests start share what is compiled. Of single
# operations there are thousands; kept, they are compiled by one process alone (user
# time of four files of drafters: 132 s without, 116 s with).
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR",
    str(pathlib.Path(__file__).parent.parent / ".jax_cache"),
)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

import jax
import pytest

from decoding.loops import engines
from tests import ci_budget


def pytest_addoption(parser):
    parser.addoption("--costs", help="write each test's seconds of processor time")


def pytest_collection_modifyitems(config, items):
    """Leave long tests out, also of `-m kernels`, unless `-m` names them, or `kv`.

    The whole suite without `-m` is CI's, which has no time for all: see `ci_budget`.
    """
    if any(word in config.option.markexpr for word in ("long", "kv")):
        return
    beyond = set()
    if config.args == config.getini("testpaths") and not config.option.markexpr:
        beyond = ci_budget.beyond()
        if unknown := beyond - {item.nodeid for item in items}:
            # Not an error: some cases stand only where an extra is installed.
            warning = pytest.PytestCollectionWarning(
                f"tests/beyond_ci.txt names {len(unknown)} tests that are not there, "
                f"such as {min(unknown)}: take them out, or write the list anew"
            )
            config.issue_config_time_warning(warning, 2)
    is_out = {
        item: item.nodeid in beyond or bool(item.get_closest_marker("long"))
        for item in items
    }
    config.hook.pytest_deselected(items=[item for item in items if is_out[item]])
    items[:] = [item for item in items if not is_out[item]]


def pytest_collection_finish(session):
    """Spare the garbage collector what lives as long as the process.

    Tracing makes objects by the hundred thousand, and each full collection walks over
    all modules and tests besides. Contracts of two methods, two runs each: 25.3 and
    29.4 s of processor time without this, 25.1 and 27.1 s with it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


_BEGUN = pytest.StashKey[float]()
DEAREST = 20  # files that the summary names


def cpu_seconds() -> float:
    """Processor time of this process and of those that it waited for."""
    return sum(os.times()[:4])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    item.stash[_BEGUN] = cpu_seconds()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Note what the test cost: processor time, which other work hardly changes."""
    if call.when == "teardown":
        spent = cpu_seconds() - item.stash.get(_BEGUN, cpu_seconds())
        item.user_properties.append(("cpu", spent))
    return (yield)


def pytest_terminal_summary(terminalreporter):
    """Print the dearest files; CONTRIBUTING.md says what a method's tests may cost."""
    costs = {
        report.nodeid: dict(report.user_properties)["cpu"]
        for report in itertools.chain(*terminalreporter.stats.values())
        if getattr(report, "when", None) == "teardown"
    }
    if file := terminalreporter.config.option.costs:
        pathlib.Path(file).write_text(json.dumps(costs))
    files = collections.Counter()
    for name, seconds in costs.items():
        files[name.split("::")[0]] += seconds
    terminalreporter.section("dearest files, in seconds of processor time")
    terminalreporter.write_line(f"{sum(files.values()):8.1f}  all {len(files)} files")
    for name, seconds in files.most_common(DEAREST):
        terminalreporter.write_line(f"{seconds:8.1f}  {name}")


MOST_MAPPINGS, MOST_BYTES = 30_000, 1.9 * 2**30
BETWEEN = 0.8  # the share of them at which programs go where the next test has its own
_turns = itertools.count()


def resident() -> int:
    """Bytes of memory that this process holds."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def group(item) -> tuple:
    """What tests have in common that share programs: their file, and their method."""
    chosen = getattr(item, "callspec", None)
    return item.path, chosen and chosen.params.get("method")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    """Drop the compiled programs before there are too many for the system.

    Each holds memory mappings, of which Linux grants a process 65,530: beyond them the
    compiler crashes. A worker shall stay below 2.5 GiB. Best it happens between groups,
    which share few programs: within one they would be compiled again.
    """
    found = yield
    part = BETWEEN if nextitem is None or group(item) != group(nextitem) else 1.0
    much = resident() > part * MOST_BYTES
    # Counting takes as long as a small test; a long one may compile thousands.
    if not next(_turns) % 8 or item.get_closest_marker("long"):
        much |= engines.mappings() > part * MOST_MAPPINGS
    if much:
        engines._ENGINES.clear()
        jax.clear_caches()
        gc.collect()
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # glibc keeps what was freed otherwise
    return found
