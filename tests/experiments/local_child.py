"""A process for test_launch: `-m tests.experiments.local_child FOLDER BEHAVIOUR`."""

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
    (folder / f"began{number}").write_text(" ".join(told))
    if behaviour == "ends" or (behaviour == "fails" and number == "0"):
        sys.exit(3 if behaviour == "fails" else 0)
    time.sleep(60)


if __name__ == "__main__":
    main()
