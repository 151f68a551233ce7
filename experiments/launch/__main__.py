"""The command `python -m experiments.launch`; see command.py."""

import sys

from experiments.launch import command

if __name__ == "__main__":
    sys.exit(command.main())
