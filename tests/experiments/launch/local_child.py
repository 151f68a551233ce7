"""A process for test_launch.

`python -m tests.experiments.launch.local_child FOLDER BEHAVIOUR`
"""

import os
import pathlib
import signal
import sys
import time


def main() -> None:
    folder, behaviour = pathlib.Path(sys.argv[1]), sys.argv[2]
    number = os.environ.get("JAX_PROCESS_ID", "0")

    def stop(*_) -> None:
        (folder / f"stopped{number}").touch()
        sys.exit(75)

    signal.signal(signal.SIGTERM, stop)
    names = ("JAX_NUM_CPU_DEVICES", "JAX_NUM_PROCESSES", "JAX_COORDINATOR_ADDRESS")
    told = [os.environ.get(name, "") for name in names]
    ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    told.append("ignored" if ignored else "heard")
    print(f"process {number}", flush=True)
    (folder / f"began{number}").write_text(" ".join(told))
    if behaviour == "ends":
        sys.exit(0)
    if behaviour == "fails" and number == "0":
        while not (folder / "began1").exists():  # the other can be told to stop
            time.sleep(0.01)
        sys.exit(3)
    # Python hears a signal between two sleeps. One that comes just before a sleep
    # begins waits for its end, which is why they are short.
    for _ in range(600):
        time.sleep(0.1)


if __name__ == "__main__":
    main()
