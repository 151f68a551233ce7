"""Programs that try to pass wrong tests, to stay, or to use up the machine."""

from decoding.execution.tests_runner import Limits

LIMITS = Limits(wall=10, cpu=1, memory=256 << 20, output=4096)
SHORT = Limits(wall=1, cpu=1, memory=256 << 20)  # for those that sleep
RIGHT = "def f(x):\n    return x + 1\n"
WRONG = "def f(x):\n    return 0\n"

# name -> the program, its limits, and what its reason begins with.
PROGRAMS = {
    "endless loop": ("while True: pass", LIMITS, "timeout"),
    "sleep": ("import time\ntime.sleep(60)", SHORT, "timeout"),
    "fork bomb": (  # of 32 processes, should the runner let it
        "import os, time\nfor _ in range(5): os.fork()\ntime.sleep(60)",
        LIMITS,
        "error: ",
    ),
    "daemon": (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        os.chdir('/')\n"
        "        time.sleep(60)\n"
        "    os._exit(0)\n" + RIGHT,
        LIMITS,
        "error: ",
    ),
    "other program": (
        "import subprocess\n"
        "subprocess.Popen(['sleep', '60'], start_new_session=True)\n" + RIGHT,
        LIMITS,
        "error: ",
    ),
    "thread": ("import _thread\n_thread.start_new_thread(print, ())", LIMITS, "error"),
    "2 GB": ("x = bytearray(2 << 30)", LIMITS, "memory"),
    "many objects": (
        "x = []\nwhile True: x.append(bytes(9999))",
        LIMITS,
        "memory",
    ),
    "early exit": ("import os\nos._exit(0)", LIMITS, "exit"),
    "sys.exit": ("import sys\nsys.exit(0)", LIMITS, "exit"),
    "segmentation fault": ("import ctypes\nctypes.string_at(0)", LIMITS, "exit"),
    "printed verdict": (
        "import os\nprint('ok', 'PASSED', 'done', '0' * 32)\nos._exit(0)",
        LIMITS,
        "exit",
    ),
    "exit in the test": (
        "import os\ndef f(x):\n    print('ok')\n    os._exit(0)",
        LIMITS,
        "exit",
    ),
    "endless output": ("while True: print('ok')", LIMITS, "output"),
    "stdin": ("input()", LIMITS, "error: EOFError"),
    "closed descriptors": (
        "import os, time\nos.closerange(0, 60)\ntime.sleep(60)",
        SHORT,
        "timeout",
    ),
    "builtins": (
        "import builtins, os\n"
        "for name in ('AssertionError', 'BaseException', 'exec', 'compile', 'len'):\n"
        "    setattr(builtins, name, lambda *a, **k: True)\n"
        "os.read = os.write = os._exit = lambda *a: b''\n" + WRONG,
        LIMITS,
        "error: AssertionError",
    ),
    "builtins in the test": (
        "import builtins\n"
        "def f(x):\n"
        "    builtins.BaseException = builtins.AssertionError = ValueError\n"
        "    builtins.isinstance = lambda *a: False\n",
        LIMITS,
        "exit",
    ),
    "atexit": (
        "import atexit, os\natexit.register(os._exit, 0)\n" + WRONG,
        LIMITS,
        "e",
    ),
    "ready answers": (  # to every descriptor that there may be
        "import os\n"
        "for fd in range(64):\n"
        "    try:\n"
        "        for _ in range(3): os.write(fd, bytes([0, 0, 0, 4]) + b'done')\n"
        "    except OSError:\n"
        "        pass\n"
        "os._exit(0)",
        LIMITS,
        "e",
    ),
    "a flood of the channel": (
        "import os\n"
        "while True:\n"
        "    for fd in range(3, 64):\n"
        "        try:\n"
        "            os.write(fd, b'done' * 9999)\n"
        "        except OSError:\n"
        "            pass\n",
        LIMITS,
        "error: the program wrote",
    ),
}
