"""Results under the compiler's own flags, which are those of every user.

`tests/conftest.py` compiles for AVX, which has no fused multiply-add: what XLA rounds
in two ways for users, it rounds in one way for the suite.
"""

import json
import os
import subprocess
import sys
from typing import Any

CODE = """
import importlib, json, sys
found = getattr(importlib.import_module(sys.argv[1]), sys.argv[2])()
print(json.dumps(found))
"""


def result(module: str, function: str) -> Any:
    """Call `module.function()` in a new process; what it returns comes as JSON."""
    environment = {**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", CODE, module, function]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
