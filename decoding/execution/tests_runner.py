"""Run the public tests of generated programs, each program in a child process.

What this does not protect from. It is no security boundary: programs run on this
machine as its user, and a hostile one may do harm.

- A program can read every file that its user can read.
- A kernel's fault is open to it.
- A program shares its interpreter with its tests. One that is written for it passes
  them: with objects whose `__eq__` returns True, by reading the test in its caller's
  frame, by a trace function that jumps over the assert, by memory that it changes with
  `ctypes`, or by finding the channel's descriptor and speaking the protocol itself.
  Names of builtins that the program defines as its own globals are what tests see.
- Where the system gives no user namespaces (many containers), a program can make empty
  files, and truncate, rename and remove those of its user. Through /proc it can read
  the environment, and change the memory, of its user's processes, this one included.
- Where it gives no seccomp filter (systems other than Linux on x86-64 and AArch64), a
  program can signal its user's processes, and without user namespaces use the network.
  As root it can start processes that outlive the run.

`Verdict.isolated` names what held. For programs that nobody trusts, run the whole job
in a virtual machine.

What it does. A program that fails by accident, or by a trick that knows nothing of this
file, gets its verdict within the limits, and nothing of it stays:

- One child a program, with Python's isolated mode: an empty temporary folder, no
  environment, no input, a session of its own. It is killed when the time is over, and
  when this process dies.
- Limits on time, processor, memory, output and files. It has no thread and no process
  beside its own.
- No network, no file made or changed, no signal to others, as far as the system allows.
- Tests arrive after the program was loaded. A test passes when its nonce comes back:
  it is sent when the test has returned, over a channel that is neither input nor
  output. So `os._exit(0)`, a printed "ok" and bytes written anywhere ahead of time pass
  nothing. Builtins that the program replaced are restored before each test.

A test is Python, such as `assert f(2) == 3`, and passes if it raises nothing. The tests
of a program run in order in the program's module (`__name__` is "program"). One that
hangs or ends the process loses itself and the later ones.

Off unless `allow_execution=True` is passed and DECODAX_ALLOW_EXECUTION=1 is set.

Deviations: the flags are those of `-I`, but the variable PYTHONHASHSEED is 0, so that
the verdict of a program that walks a set of strings repeats.

Cost: about 0.1 s of one core a program, most of it the start of the interpreter.
"""

import contextlib
import dataclasses
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent import futures

from decoding.execution import child
from models.errors import MethodError

SWITCH = "DECODAX_ALLOW_EXECUTION"
START = 60.0  # seconds for the interpreter's start, which no program delays
PIECE = 1 << 16  # bytes read at once
REPLY = 4 + 4 * child.MESSAGE + 64  # most bytes of an honest reply


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of one program with its tests; MethodError if they are none."""

    wall: float = 3.0  # seconds from the program's arrival to the last verdict
    cpu: int = 2  # seconds of the processor, the interpreter's start included
    memory: int = 512 << 20  # bytes of address space, the interpreter's included
    output: int = 64 << 10  # bytes that the program prints
    file: int = 0  # bytes of a file that it writes

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            is_number = isinstance(value, (int, float) if name == "wall" else int)
            if not is_number or value < 0 or (value == 0 and name != "file"):
                raise MethodError(
                    f"Limits({name}={value!r}): give a positive number (file may be "
                    "0), and a whole one unless it is wall"
                )


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What the tests of one program came to.

    Fields:
        passed: whether each test passed, in their order.
        reason: "ok", or why the first test that did not pass did not: "timeout" (wall
            or processor), "memory", "exit" (the process ended, `sys.exit` too),
            "output" (it printed too much), "error: TYPE: MESSAGE" of an exception.
        output: what the program and the tests printed, cut at the limit.
        isolated: what the system cut off: "files", "network", "processes".
    """

    passed: tuple[bool, ...]
    reason: str
    output: str
    isolated: tuple[str, ...]

    @property
    def share(self) -> float:
        """Return the share of tests that passed, in [0, 1]."""
        return sum(self.passed) / len(self.passed)


def run(
    program: str,
    tests: Sequence[str],
    limits: Limits | None = None,
    allow_execution: bool = False,
) -> Verdict:
    """Run one program's tests in a child process.

    Args:
        program: Python source.
        tests: Python sources, at least one.
        limits: of the program with all its tests; None: the defaults of `Limits`.
        allow_execution: one of the two switches.

    Returns:
        The verdict. Whatever the program does becomes one.

    Raises:
        MethodError: running is off, an argument is wrong, or the child does not start.
    """
    return run_all([program], [tests], limits, allow_execution)[0]


def run_all(
    programs: Sequence[str],
    tests: Sequence[Sequence[str]],
    limits: Limits | None = None,
    allow_execution: bool = False,
    workers: int | None = None,
) -> list[Verdict]:
    """Run several programs, `workers` children at a time.

    Args:
        programs: Python sources.
        tests: of each program, its tests.
        limits, allow_execution: as for `run`, of each program.
        workers: None: one a core.

    Returns:
        A verdict for each program, in their order.

    Raises:
        MethodError: as for `run`.
    """
    check_allowed(allow_execution)
    if len(programs) != len(tests):
        raise MethodError(
            f"{len(programs)} programs and {len(tests)} lists of tests: give each "
            "program its tests"
        )
    for program, its_tests in zip(programs, tests):
        if isinstance(its_tests, str) or not its_tests:
            raise MethodError(f"tests={its_tests!r}: give a list of at least one test")
        for text in (program, *its_tests):
            if not isinstance(text, str):
                raise MethodError(f"{text!r} is no program or test: give Python source")
    workers = workers or len(os.sched_getaffinity(0))
    limits = limits or Limits()
    with futures.ThreadPoolExecutor(workers) as pool:
        jobs = [pool.submit(_judge, p, t, limits) for p, t in zip(programs, tests)]
        try:
            return [job.result() for job in jobs]
        finally:
            pool.shutdown(cancel_futures=True)


def check_allowed(allow_execution: bool) -> None:
    """Refuse to run programs unless both switches are on, by a MethodError."""
    setting = os.environ.get(SWITCH)
    if allow_execution is not True or setting != "1":
        raise MethodError(
            f"running programs is off (allow_execution={allow_execution!r}, "
            f"{SWITCH}={setting!r}): generated programs run on this machine, and the "
            "page of decoding/execution/tests_runner.py says what that risks. To allow "
            f"it, pass allow_execution=True and set {SWITCH}=1"
        )


class _EndError(Exception):
    """The child will give no further verdict; the text is the reason."""


def _judge(program: str, tests: Sequence[str], limits: Limits) -> Verdict:
    passed = [False] * len(tests)
    reason = "ok"
    with _child(limits) as link:
        try:
            start = link.ask(b"", time.monotonic() + START)
        except _EndError as end:
            raise MethodError(
                f"the child process did not start ({end}): the system may refuse one "
                f"of {limits}\n{link.text()}"
            ) from end
        isolated = tuple(start[len(child.READY) :].decode().split())
        deadline = time.monotonic() + limits.wall
        try:
            reply = link.ask(_frame(program), deadline)
            if reply != child.DONE:
                raise _EndError(reply.decode("utf-8", "replace"))
            for i, test in enumerate(tests):
                reply = link.ask(_frame(test), deadline)
                if reply == child.DONE:
                    nonce = _nonce()
                    echo = link.ask(nonce, deadline, len(nonce))
                    if echo != nonce:
                        raise _EndError("error: the nonce did not come back")
                    passed[i] = True
                elif reason == "ok":
                    reason = reply.decode("utf-8", "replace")
        except _EndError as end:
            reason = str(end) if reason == "ok" else reason
        text = link.text()
    return Verdict(tuple(passed), reason, text, isolated)


def _nonce() -> bytes:
    return secrets.token_bytes(child.NONCE)


def _frame(text: str) -> bytes:
    content = text.encode("utf-8", "surrogatepass")
    return len(content).to_bytes(4, "big") + content


@contextlib.contextmanager
def _child(limits: Limits) -> Iterator["_Link"]:
    """Start a child; at the end, kill it and remove its folder."""
    ours, theirs = socket.socketpair()
    numbers = (theirs.fileno(), limits.memory, limits.cpu, limits.file)
    command = [sys.executable, "-s", "-P", "-B", "-u", "-X", "utf8", child.__file__]
    with ours, theirs, tempfile.TemporaryDirectory(prefix="decodax-run-") as folder:
        process = subprocess.Popen(
            [*command, *map(str, numbers)],
            cwd=folder,
            env={"PYTHONHASHSEED": "0"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
        theirs.close()
        try:
            yield _Link(process, ours, limits.output)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


class _Link:
    """The parent's ends of a child's channel and output."""

    def __init__(
        self, process: subprocess.Popen, channel: socket.socket, most: int
    ) -> None:
        assert process.stdout is not None
        self.process, self.channel, self.most = process, channel, most
        self.printed = process.stdout.fileno()
        self.output, self.replies = bytearray(), bytearray()
        channel.setblocking(False)
        os.set_blocking(self.printed, False)

    def ask(self, message: bytes, deadline: float, size: int | None = None) -> bytes:
        """Send a message and return the reply: `size` bytes, or a frame's content.

        Raises _EndError if the time or the output is used up, or the child ended.
        """
        pending = memoryview(message)
        with selectors.DefaultSelector() as selector:
            selector.register(self.printed, selectors.EVENT_READ)
            selector.register(self.channel, selectors.EVENT_READ)
            while True:
                if (reply := self._reply(size)) is not None:
                    return reply
                events = selectors.EVENT_READ | (
                    selectors.EVENT_WRITE if pending else 0
                )
                selector.modify(self.channel, events)
                left = deadline - time.monotonic()
                ready = selector.select(max(left, 0))
                if left <= 0:
                    raise _EndError("timeout")
                for key, mask in ready:
                    if key.fileobj is not self.channel:
                        if not self._print():
                            selector.unregister(self.printed)
                        continue
                    try:
                        if mask & selectors.EVENT_WRITE:
                            pending = pending[self.channel.send(pending) :]
                        if mask & selectors.EVENT_READ:
                            data = self.channel.recv(PIECE)
                            if not data:
                                raise _EndError(self._ending(deadline))
                            self.replies += data
                    except OSError as error:
                        raise _EndError(self._ending(deadline)) from error

    def text(self) -> str:
        """Return what was printed, as far as the limit."""
        with contextlib.suppress(_EndError):
            while self._print():
                pass
        return self.output[: self.most].decode("utf-8", "replace")

    def _reply(self, size: int | None) -> bytes | None:
        """Take a reply from what arrived, if it is whole."""
        head = 4 if size is None else 0
        if len(self.replies) < head:
            return None
        end = head + (int.from_bytes(self.replies[:4], "big") if size is None else size)
        if max(end, len(self.replies)) > REPLY:
            raise _EndError("error: the program wrote to the channel")
        if len(self.replies) < end:
            return None
        reply = bytes(self.replies[head:end])
        del self.replies[:end]
        return reply

    def _print(self) -> bool:
        """Read what was printed; False if there is no more."""
        try:
            data = os.read(self.printed, PIECE)
        except BlockingIOError:
            return False
        self.output += data
        if len(self.output) > self.most:
            raise _EndError("output")
        return bool(data)

    def _ending(self, deadline: float) -> str:
        """Name why the child left the channel."""
        try:
            status = self.process.wait(max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            return "timeout"
        return "timeout" if status == -signal.SIGXCPU else "exit"
