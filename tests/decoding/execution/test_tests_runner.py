"""Hostile programs get their verdicts within the limits and leave nothing behind."""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import pytest

from decoding.execution import child, tests_runner
from decoding.execution.tests_runner import Limits
from models.errors import MethodError
from tests.decoding.execution.hostile_programs import (
    LIMITS,
    PROGRAMS,
    RIGHT,
    SHORT,
    WRONG,
)

TESTS = ["assert f(2) == 3", "assert f(3) == 4"]


@pytest.fixture(autouse=True)
def place(monkeypatch, tmp_path):
    """Allow programs, with their folders here and this path in their command lines."""
    monkeypatch.setenv(tests_runner.SWITCH, "1")
    link = tmp_path / "python"
    link.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(link))
    (tmp_path / "runs").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "runs"))
    return tmp_path


def run(program, tests=TESTS, limits=LIMITS):
    return tests_runner.run(program, tests, limits, allow_execution=True)


def left(place: pathlib.Path) -> list[str]:
    """List the processes of a run, dead ones not reaped included, and its files."""
    remains = [str(path) for path in (place / "runs").iterdir()]
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes()
        except OSError:  # it ended meanwhile
            continue
        if str(place / "python").encode() in line:
            remains.append(f"process {folder.name}")
    return remains


@pytest.mark.parametrize("name", PROGRAMS)
def test_hostile(name, place):
    program, limits, reason = PROGRAMS[name]
    verdict = run(program, limits=limits)
    assert verdict.passed == (False, False)
    if "processes" in verdict.isolated or reason != "error: ":
        assert verdict.reason.startswith(reason), verdict
    assert len(verdict.output) <= limits.output
    assert left(place) == []


def test_files(place):
    """No file is made or changed: not in the program's folder, not elsewhere."""
    kept = place / "kept"
    kept.write_text("kept")
    for action in (
        "open('x', 'w').write('x')",
        f"open({str(place / 'x')!r}, 'w').write('x')",
        f"open({str(kept)!r}, 'a').write('x')",
        f"import os\nos.remove({str(kept)!r})",
        f"import os\nos.chmod({str(kept)!r}, 0)",
        f"import shutil\nshutil.rmtree({str(place)!r})",
        "import tempfile\nopen(tempfile.mkdtemp() + '/x', 'w').write('x')",
    ):
        verdict = run(action)
        if "files" not in verdict.isolated:
            pytest.skip("this system gives no user namespaces")
        assert not any(verdict.passed) and verdict.reason.startswith("error: "), action
        assert left(place) == []
        assert kept.read_text() == "kept" and kept.stat().st_mode & 0o777
        assert not (place / "x").exists()


def test_bytes_of_a_file():
    """Where files can be made, they stay empty: shown on a file without a name."""
    program = "import os\nos.write(os.memfd_create('x'), b'x')\n" + RIGHT
    assert run(program).reason.startswith("error: OSError: [Errno 27]")
    assert run(program, limits=Limits(file=1)).reason == "ok"


def test_others(place):
    """Neither the network nor the process that runs the tests is within reach."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        verdict = run(f"import socket\nsocket.create_connection(('127.0.0.1', {port}))")
    if {"network", "files", "processes"} - set(verdict.isolated):
        pytest.skip(f"this system isolates {verdict.isolated} alone")
    assert verdict.reason.startswith("error: ")
    for action in (
        "os.kill(os.getppid(), 0)",
        "os.setpriority(os.PRIO_PROCESS, os.getppid(), 1)",
        "resource.prlimit(os.getppid(), resource.RLIMIT_CORE)",
        "open(f'/proc/{os.getppid()}/environ').read()",
        "open(f'/proc/{os.getppid()}/mem', 'rb')",
    ):
        reason = run(f"import os, resource\n{action}").reason
        assert reason.startswith("error: PermissionError"), (action, reason)


def without(monkeypatch, place, call: str) -> None:
    """Let the child run as on a system that refuses a call."""
    source = pathlib.Path(child.__file__).read_text()
    assert source.count(call) == 1
    (place / "child.py").write_text(source.replace(call, "-1"))
    monkeypatch.setattr(child, "__file__", str(place / "child.py"))


def test_without_namespaces(monkeypatch, place):
    """Files then have no bytes, and those of the program's folder go with it."""
    without(monkeypatch, place, "libc.unshare(NAMESPACES)")
    assert run(RIGHT).share == 1
    verdict = run("with open('x', 'w') as f: f.write('x')")
    assert "files" not in verdict.isolated
    assert verdict.reason.startswith("error: OSError: [Errno 27]")
    assert run("import os\nos.makedirs('a/b')\nos.chmod('a', 0)\n" + RIGHT).share == 1
    assert left(place) == []


def test_without_a_filter(monkeypatch, place):
    """Processes of the program's session then end with it."""
    without(
        monkeypatch, place, "libc.prctl(PR_SET_SECCOMP, 2, ctypes.byref(filter_), 0, 0)"
    )
    verdict = run(PROGRAMS["fork bomb"][0], limits=SHORT)
    assert verdict.passed == (False, False)
    is_root = os.geteuid() == 0  # whom no limit of processes binds
    assert ("processes" in verdict.isolated) != is_root
    assert verdict.reason.startswith("timeout" if is_root else "error: ")
    end = time.monotonic() + 10  # the kernel ends the 31 others when it may
    while left(place) and time.monotonic() < end:
        time.sleep(0.01)
    assert left(place) == []


def test_the_scan_notices(place):
    """Planted: a process and a file that outlive a run."""
    (place / "runs" / "x").touch()
    command = [sys.executable, "-c", "print(flush=True)\ninput()"]
    with subprocess.Popen(command, stdin=-1, stdout=-1) as process:
        assert process.stdout is not None and process.stdout.readline()  # it runs
        remains = left(place)
        process.communicate(b"\n")
    assert remains == [str(place / "runs" / "x"), f"process {process.pid}"]


def test_dies_with_its_parent(place):
    """A child whose parent is gone is killed, though nobody counts its time."""
    links = []

    def start():
        context = tests_runner._child(Limits())
        link = context.__enter__()
        link.ask(b"", time.monotonic() + 60)
        link.channel.send(tests_runner._frame("import time\ntime.sleep(60)"))
        links.append((context, link))

    thread = threading.Thread(target=start)  # the kernel's parent of a process
    thread.start()
    thread.join()
    context, link = links[0]
    assert link.process.wait(10) == -signal.SIGKILL
    context.__exit__(None, None, None)
    assert left(place) == []


def test_later_tests():
    """A test that fails loses itself; one that hangs or ends the process, the rest."""
    program = (
        "import os, sys, time\n"
        "def f(x):\n"
        "    if x == 'sleep': time.sleep(60)\n"
        "    if x == 'exit': sys.exit(0)\n"
        "    if x == 'end': os._exit(0)\n"
        "    if x == 'memory': bytearray(2 << 30)\n"
        "    return x + 1\n"
    )
    for test, reason, after in (
        ("assert f(1) == 3", "error: AssertionError", True),
        ("f('')", "error: TypeError: can only concatenate", True),
        ("f(", "error: SyntaxError", True),
        ("f('exit')", "exit", True),
        ("f('memory')", "memory", True),
        ("f('end')", "exit", False),
        ("f('sleep')", "timeout", False),
    ):
        limits = SHORT if reason == "timeout" else LIMITS
        verdict = run(program, [TESTS[0], test, TESTS[1]], limits)
        assert verdict.passed == (True, False, after), (test, verdict)
        assert verdict.reason.startswith(reason), (test, verdict)
        assert verdict.share == (2 if after else 1) / 3


def test_what_a_program_gets():
    """No environment, arguments or tests; a module's name; words in one order."""
    program = (
        "import dataclasses, os, sys\n"
        "@dataclasses.dataclass\n"
        "class Point:\n    x: 'int'\n"
        "if __name__ == '__main__': sys.exit(1)\n"
        "print(os.listdir(), sys.argv[1:], 'HOME' in os.environ, 'é')\n"
        "print({'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j'})\n" + RIGHT
    )
    verdict = run(program)
    assert verdict.passed == (True, True) and verdict.reason == "ok"
    assert verdict.output.startswith("[] [] False é\n{")
    assert run(program).output == verdict.output


def test_shadowed_builtins_are_the_programs_own():
    """Two documented ways to pass a test that is wrong."""
    always = "class Always:\n    def __eq__(self, other): return True\n"
    assert run(always + "def f(x): return Always()").passed == (True, True)
    assert run("def sorted(x): return [1]", ["assert sorted([2]) == [1]"]).share == 1


def by_exit(program: str, tests: list[str]) -> bool:
    source = "\n".join([program, *tests])
    return subprocess.run([sys.executable, "-c", source]).returncode == 0


def by_output(program: str, tests: list[str]) -> bool:
    source = "\n".join([program, *tests, "print('ok')"])
    done = subprocess.run([sys.executable, "-c", source], capture_output=True)
    return b"ok" in done.stdout


def test_fault_without_the_nonce(monkeypatch):
    """Planted: runners that leave the nonce out pass a program that hostile ones beat.

    One goes by the exit status, one by what is printed, and one is ours with an empty
    nonce.
    """
    assert by_exit(RIGHT, TESTS) and by_output(RIGHT, TESTS)
    assert not by_exit(WRONG, TESTS) and not by_output(WRONG, TESTS)
    assert by_exit(PROGRAMS["early exit"][0], TESTS)
    assert by_exit(PROGRAMS["exit in the test"][0], TESTS)
    assert by_output(PROGRAMS["printed verdict"][0], TESTS)
    monkeypatch.setattr(tests_runner, "_nonce", lambda: b"")
    assert run(PROGRAMS["ready answers"][0]).passed == (True, True)


def test_many():
    """Verdicts keep the programs' order, whichever ends first."""
    programs = [
        f"import time\ntime.sleep({0.2 if i == 0 else 0})\nprint({i})\n"
        f"def f(x): return x + {i}"
        for i in range(6)
    ]
    tests = [[f"assert f(1) == {i + 1}", "assert f(1) == 2"] for i in range(6)]
    verdicts = tests_runner.run_all(programs, tests, LIMITS, True, workers=3)
    assert [v.passed for v in verdicts] == [(True, i == 1) for i in range(6)]
    assert [v.output for v in verdicts] == [f"{i}\n" for i in range(6)]
    assert tests_runner.run_all([], [], allow_execution=True) == []


def test_large_sources():
    """Sources larger than the channel's buffer, to a program that does not read."""
    filler = "#" * (1 << 20)
    assert run(RIGHT + filler, [TESTS[0] + filler, TESTS[1]]).passed == (True, True)
    never = "import time\ndef f(x): time.sleep(60)"
    assert run(never, [TESTS[0], TESTS[1] + filler], SHORT).reason == "timeout"


@pytest.mark.parametrize("value", [None, "", "0", "true"])
def test_off_by_the_variable(monkeypatch, place, value):
    if value is None:
        monkeypatch.delenv(tests_runner.SWITCH)
    else:
        monkeypatch.setenv(tests_runner.SWITCH, value)
    with pytest.raises(MethodError, match="DECODAX_ALLOW_EXECUTION=1"):
        run(f"open({str(place / 'x')!r}, 'w')")
    with pytest.raises(MethodError, match="allow_execution=True"):
        tests_runner.run_all([], [], allow_execution=True)


@pytest.mark.parametrize("value", [False, None, 1, "yes"])
def test_off_by_the_argument(value):
    assert os.environ[tests_runner.SWITCH] == "1"
    with pytest.raises(MethodError, match="pass allow_execution=True"):
        tests_runner.run(RIGHT, TESTS, allow_execution=value)
    with pytest.raises(MethodError, match="DECODAX_ALLOW_EXECUTION=1"):
        tests_runner.run_all([RIGHT], [TESTS])


def test_wrong_arguments(monkeypatch):
    for arguments, words in (
        ((RIGHT, []), "at least one test"),
        ((RIGHT, "assert f(2) == 3"), "a list of at least one test"),
        ((RIGHT, [3]), "3 is no program or test"),
        ((None, TESTS), "None is no program"),
    ):
        with pytest.raises(MethodError, match=words):
            run(*arguments)
    with pytest.raises(MethodError, match="2 programs and 1 lists"):
        tests_runner.run_all([RIGHT] * 2, [TESTS], allow_execution=True)
    for fields in ({"wall": 0}, {"cpu": 0.5}, {"memory": -1}, {"output": "1"}):
        with pytest.raises(MethodError, match=r"Limits\("):
            Limits(**fields)
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(MethodError, match="did not start"):
        run(RIGHT)


def test_calls_of_the_filter():
    """No number is given to two calls, on either architecture."""
    for column in (0, 1):
        numbers = [n[column] for n in child.FORBIDDEN.values() if n[column] >= 0]
        assert len(set(numbers)) == len(numbers) < 250  # jumps of 8 bits
