"""Engines behind one interface: masks, steps and ends, on single bytes."""

import json

import numpy as np
import pytest

from experiments.studies import constraint_peers
from experiments.studies.constraint_peers import BYTES, PEERS
from models.errors import ConfigError, ConstraintError

SCHEMA = json.dumps({"type": "array", "items": {"enum": [7, 12]}, "maxItems": 2})


@pytest.fixture(scope="module", params=PEERS)
def engine(request):
    package, make = PEERS[request.param]
    if not constraint_peers.is_installed(package):
        pytest.skip(f"{package} is not installed")
    return make(BYTES)


def verdict(session, text):
    for byte in text.encode():
        if not constraint_peers.has(session.mask(), byte + 1):
            return False
        if not session.commit(byte + 1):
            return False
    return session.is_over()


def test_masks_lead_along_instances(engine):
    """Planted: a number that is none of the two, and a text that is cut."""
    first = engine.compile(SCHEMA)
    for text in ("[]", "[7]", "[7, 12]"):
        assert verdict(first.restarted(), text), text
    for text in ("[8]", "[7", "[7, 12, 7]", "{}"):
        assert not verdict(first.restarted(), text), text


def test_a_session_is_not_changed_by_another(engine):
    """Planted: the first session's mask behind a token is another one."""
    first = engine.compile(SCHEMA)
    before = first.restarted().mask().copy()
    session = first.restarted()
    assert session.commit(ord("[") + 1)
    assert not np.array_equal(session.mask(), before)
    assert np.array_equal(first.restarted().mask(), before)


def test_a_schema_is_refused_by_an_error(engine):
    with pytest.raises(ConstraintError):
        engine.compile('{"type": 3}')


def test_bits_of_words():
    """Planted: a neighbour's bit."""
    words = np.zeros(3, np.uint32)
    words[1] = 1 << 31
    assert constraint_peers.has(words, 63)
    assert not constraint_peers.has(words, 62) and not constraint_peers.has(words, 64)


def test_names_are_checked():
    constraint_peers.check(list(PEERS))
    with pytest.raises(ConfigError, match="use some of"):
        constraint_peers.check(["noodle"])
