"""The command `python -m experiments.preflight`; see command.py."""

import sys

from experiments.preflight import command

if __name__ == "__main__":
    sys.exit(command.main())
