"""A second process of the same call on `tiny` compiles nothing (JAX's own events)."""

import json
import os
import subprocess
import sys

import pytest

COUNT = """
import collections, json, sys
import jax
import decoding, models

events = collections.Counter()
jax.monitoring.register_event_listener(lambda name, **_: events.update([name]))
lm = models.load("tiny", heads=sys.argv[2] or None)
out = decoding.generate(
    lm,
    ["def main(", "import os\\n"],
    sys.argv[1] or None,
    max_new_tokens=24,
    temperature=0.8,
    top_p=0.9,
)
cache = "/jax/compilation_cache/"
print(json.dumps([events[cache + "cache_misses"], events[cache + "cache_hits"]]))
print(json.dumps(out.tokens))
"""


def process(folder, method: str = "", heads: str = "") -> tuple:
    """Run the call in a process of its own: misses, hits, tokens."""
    kept = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    environment = {**kept, "DECODAX_CACHE": str(folder), "DECODAX_WIDTH": "auto"}
    found = subprocess.run(
        [sys.executable, "-c", COUNT, method, heads],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert not found.returncode, found.stderr
    counts, tokens = found.stdout.splitlines()[-2:]
    return *json.loads(counts), json.loads(tokens)


@pytest.mark.long
@pytest.mark.parametrize(
    "method", [("",), ("token_recycling",), ("", "tiny-fspad")], ids=str
)
def test_nothing_is_compiled_twice(tmp_path, method):
    """Measured widths among it; planted: another folder, where everything is."""
    misses, _, tokens = process(tmp_path / "one", *method)
    again, hits, same = process(tmp_path / "one", *method)
    assert misses > 0 and again == 0 and hits >= misses and same == tokens
    assert process(tmp_path / "other", *method)[0] == misses
