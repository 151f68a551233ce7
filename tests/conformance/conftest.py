"""Conformance compiles many small programs once: XLA's costly passes are left out."""

import pytest


@pytest.fixture(autouse=True)
def quickly(quick_compilation):
    yield
