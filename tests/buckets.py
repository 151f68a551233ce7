"""A bucket of an emulator in this process, `gs://bucket`, for tests that import it."""

import os
import socket
import uuid

import pytest

from models import storage

SERVER = pytest.importorskip("gcp_storage_emulator.server")


@pytest.fixture(scope="session")
def emulator():
    """Serve an empty bucket; this process and its children find it."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    server = SERVER.create_server(
        "localhost", port, in_memory=True, default_bucket="bucket"
    )
    server.start()
    place = f"http://localhost:{port}"
    told = {
        "STORAGE_EMULATOR_HOST": place,
        "TENSORSTORE_GCS_HTTP_URL": place,
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # it would ask for credentials
        "NO_GCE_CHECK": "true",
    }
    before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    yield
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})
    server.stop()


@pytest.fixture
def bucket(emulator):
    """A folder of its own in the bucket."""
    return storage.path(f"gs://bucket/{uuid.uuid4().hex[:8]}")
