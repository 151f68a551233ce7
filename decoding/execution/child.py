"""Load one program and run its tests: the child process of `tests_runner`.

It is run as a script and imports the standard library alone. Arguments: the channel's
file descriptor, then address space in bytes, processor seconds and bytes of a file.

The channel is a stream socket. A frame is 4 bytes of length and the content:

    child -> parent   READY and the names of what is confined
    parent -> child   the program
    child -> parent   DONE, or the reason why it did not load
    for each test:
        parent -> child   the test
        child -> parent   DONE, or the reason why it did not pass
        parent -> child   after DONE: the nonce, without a length
        child -> parent   the nonce
"""

import builtins
import ctypes
import os
import resource
import sys
import types

READY, DONE = b"ready ", b"done"
NONCE = 16  # bytes
MESSAGE = 200  # characters of a reason

# Flags of unshare: mounts, IPC, users, network.
NAMESPACES = 0x00020000 | 0x08000000 | 0x10000000 | 0x40000000
MS_REC, MS_PRIVATE = 1 << 14, 1 << 18
MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 1
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 22, 38
SIGKILL, EPERM = 9, 1

# Calls that a program does not get: processes and threads, other programs, signals to
# and limits of other processes, sockets, memory that outlives a process, namespaces.
# Each with its number on x86-64 and on AArch64; -1: there is none.
FORBIDDEN = {
    "clone": (56, 220),
    "fork": (57, -1),
    "vfork": (58, -1),
    "clone3": (435, 435),
    "execve": (59, 221),
    "execveat": (322, 281),
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pidfd_getfd": (438, 438),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "prlimit64": (302, 261),
    "setpriority": (141, 140),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "ioprio_set": (251, 30),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "socket": (41, 198),
    "io_uring_setup": (425, 425),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "unshare": (272, 97),
    "setns": (308, 268),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
}
AUDIT_ARCH = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
X32 = 0x40000000  # numbers from here on are those of a third ABI of x86-64


def confine(memory: int, cpu: int, file: int) -> list[str]:
    """Limit this process and cut it off as far as the system allows.

    Args:
        memory: bytes of address space.
        cpu: processor seconds.
        file: bytes of a file that it writes.

    Returns:
        Names of what holds: "network", "files" (none is made, changed or removed),
        "processes" (it starts none).

    Raises:
        OSError or ValueError: the system refuses one of the limits.
    """
    # Root alone is not bound by RLIMIT_NPROC.
    holds = {"processes"} if os.geteuid() else set()
    libc = ctypes.CDLL(None, use_errno=True)
    if sys.platform == "linux":
        if libc.unshare(NAMESPACES) == 0:
            holds.add("network")
            if make_read_only(libc):
                holds.add("files")
        # Capabilities would undo the above: of the new user, or of a real root.
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        libc.capset(header, (ctypes.c_uint32 * 6)())
        libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    for name, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_NPROC, 1),
        (resource.RLIMIT_FSIZE, file),
        (resource.RLIMIT_AS, memory),
    ):
        resource.setrlimit(name, (value, value))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
    if forbid(libc):
        holds |= {"network", "processes"}
    return sorted(holds)


def make_read_only(libc: ctypes.CDLL) -> bool:
    """Make every mount of this process's own namespace read-only."""
    if libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None):
        return False
    attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY, 0, 0, 0)
    call = (ctypes.c_long(MOUNT_SETATTR), ctypes.c_int(AT_FDCWD), b"/")
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    return not libc.syscall(*call, ctypes.c_uint(AT_RECURSIVE), attributes, size)


def forbid(libc: ctypes.CDLL) -> bool:
    """Let the calls of FORBIDDEN fail with EPERM, by a seccomp filter."""
    machine = os.uname().machine
    if sys.platform != "linux" or machine not in AUDIT_ARCH or sys.maxsize < 2**32:
        return False
    architecture, column = AUDIT_ARCH[machine]
    numbers = [pair[column] for pair in FORBIDDEN.values() if pair[column] >= 0]
    load, equal, above, give = 0x20, 0x15, 0x35, 0x06
    allow, deny, kill = 0x7FFF0000, 0x00050000 | EPERM, 0x80000000
    program = [
        (load, 0, 0, 4),  # the architecture
        (equal, 1, 0, architecture),
        (give, 0, 0, kill),
        (load, 0, 0, 0),  # the call's number
        (above, len(numbers) + 1, 0, X32),
        *((equal, len(numbers) - i, 0, n) for i, n in enumerate(numbers)),
        (give, 0, 0, allow),
        (give, 0, 0, deny),
    ]

    class Instruction(ctypes.Structure):
        _fields_ = (
            ("code", ctypes.c_uint16),
            ("if_true", ctypes.c_uint8),
            ("if_false", ctypes.c_uint8),
            ("value", ctypes.c_uint32),
        )

    class Program(ctypes.Structure):
        _fields_ = (
            ("length", ctypes.c_uint16),
            ("instructions", ctypes.POINTER(Instruction)),
        )

    array = (Instruction * len(program))(*(Instruction(*line) for line in program))
    filter_ = Program(len(program), array)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return False
    return not libc.prctl(PR_SET_SECCOMP, 2, ctypes.byref(filter_), 0, 0)


def describe(error: BaseException) -> bytes:
    """Name the reason in at most MESSAGE characters."""
    if isinstance(error, MemoryError):
        return b"memory"
    if isinstance(error, SystemExit):
        return b"exit"
    try:
        text = f"error: {type(error).__name__}: {error}"
    except BaseException:  # the program's own exception, in its own code
        text = f"error: {type(error).__name__}"
    return text.rstrip(": ")[:MESSAGE].encode("utf-8", "replace")


def serve(channel: int, holds: list[str]) -> None:
    """Load the program that arrives, then run the tests that follow."""
    # The program may replace any of these in its modules, but not in this frame.
    read, write, leave = os.read, os.write, os._exit
    compile_, execute, describe_ = compile, exec, describe
    done, nonce = DONE, NONCE
    names, original = vars(builtins), dict(vars(builtins))
    # Loaded as a module that is imported: blocks under __name__ == "__main__" do not
    # run, and `import __main__` does not lead here.
    module = types.ModuleType("program")
    scope = vars(module)
    sys.modules["program"] = sys.modules["__main__"] = module
    sys.argv[1:] = []

    def receive(count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = read(channel, count - len(data))
            if not piece:
                leave(0)
            data += piece
        return data

    def send(content: bytes) -> None:
        write(channel, len(content).to_bytes(4, "big") + content)

    def run(name: str) -> bytes:
        size = int.from_bytes(receive(4), "big")
        source = receive(size)
        reply = done
        scope["__builtins__"] = names
        try:
            text = source.decode("utf-8", "surrogatepass")
            code = compile_(text, name, "exec", dont_inherit=True, optimize=0)
            execute(code, scope)
        except BaseException as error:
            reply = describe_(error)
        names.update(original)
        return reply

    send(READY + " ".join(holds).encode())
    send(run("program.py"))
    while True:
        reply = run("test.py")
        send(reply)
        if reply is done:
            # No name ever holds a nonce, so no frame shows it.
            write(channel, read(channel, nonce))


if __name__ == "__main__":
    serve(int(sys.argv[1]), confine(*map(int, sys.argv[2:])))
