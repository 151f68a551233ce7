"""A small hub on this machine: the endpoints that huggingface_hub downloads from.

Repositories are folders. Weights are served as the hub does: a redirect with the size
and hash of the linked file. `online` is a fixture; `Hub.asked` logs the requests.
"""

import contextlib
import hashlib
import http.server
import json
import pathlib
import re
import threading
import urllib.parse
from collections.abc import Iterator

import pytest
from huggingface_hub import constants, utils

from models.checkpoints import hub

API = re.compile(r"/api/(models|datasets)/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?$")
FILE = re.compile(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)$")


class Hub:
    """Repositories by name ("datasets/owner/name" for data), and who may read them."""

    def __init__(self) -> None:
        self.folders: dict[str, pathlib.Path] = {}
        self.gated: set[str] = set()
        self.private: dict[str, str] = {}  # repository -> token
        self.broken: set[str] = set()  # file names that are refused
        self.asked: list[str] = []
        self.url = ""

    def commit(self, repo: str) -> str:
        return hashlib.sha1(repo.encode()).hexdigest()

    def downloaded(self) -> list[str]:
        """Return the names of the files whose contents were sent, sorted."""
        sent = (x.split(" ")[1] for x in self.asked if x.startswith("GET "))
        return sorted(
            x.rpartition("/")[2]
            for x in sent
            if x.startswith("/cdn") or "/resolve/" in x
        )


class _Handler(http.server.BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._respond()

    def do_GET(self) -> None:
        self._respond()

    def _respond(self) -> None:
        path = urllib.parse.urlsplit(self.path).path
        self.hub.asked.append(f"{self.command} {urllib.parse.unquote(path)}")
        if match := API.match(path):
            kind, repo, what, revision = match.groups()
            name = repo if kind == "models" else f"datasets/{repo}"
            if self._may_read(name, revision):
                self._describe(name, what)
        elif match := FILE.match(path):
            name = (match[1] or "") + match[2]
            if self._may_read(name, match[3]):
                self._file(name, urllib.parse.unquote(match[4]))
        elif path.startswith("/cdn/"):
            self._send(200, pathlib.Path(path.removeprefix("/cdn")).read_bytes())
        else:
            self._send(404)

    def _may_read(self, name: str, revision: str | None) -> bool:
        token = self.hub.private.get(name)
        sent = self.headers.get("Authorization")
        if name not in self.hub.folders or (token and sent != f"Bearer {token}"):
            self._send(404, code="RepoNotFound")
        elif revision not in (None, "main", "v1", self.hub.commit(name)):
            self._send(404, code="RevisionNotFound")
        else:
            return True
        return False

    def _describe(self, name: str, what: str | None) -> None:
        folder = self.hub.folders[name]
        files = sorted(p for p in folder.rglob("*") if p.is_file())
        names = [p.relative_to(folder).as_posix() for p in files]
        if what == "tree":
            entries = [
                {"type": "file", "path": n, "size": p.stat().st_size, "oid": _hash(p)}
                for n, p in zip(names, files)
            ]
            self._send(200, json.dumps(entries).encode())
            return
        siblings = [{"rfilename": n} for n in names]
        about = {"id": name.removeprefix("datasets/"), "sha": self.hub.commit(name)}
        self._send(200, json.dumps({**about, "siblings": siblings}).encode())

    def _file(self, name: str, path: str) -> None:
        file = self.hub.folders[name] / path
        commit = {"X-Repo-Commit": self.hub.commit(name)}
        if name in self.hub.gated:
            self._send(403, code="GatedRepo")
        elif path in self.hub.broken:
            self._send(403)
        elif not file.is_file():
            self._send(404, code="EntryNotFound", headers=commit)
        elif file.suffix == ".safetensors":
            size = str(file.stat().st_size)
            linked = {"X-Linked-Size": size, "X-Linked-Etag": f'"{_hash(file)}"'}
            # Another host: redirects to the hub itself are followed by HEAD.
            elsewhere = self.hub.url.replace("127.0.0.1", "localhost")
            where = {"Location": f"{elsewhere}/cdn{file}"}
            self._send(302, headers={**commit, **linked, **where})
        else:
            tag = {"ETag": f'"{_hash(file)}"'}
            self._send(200, file.read_bytes(), headers={**commit, **tag})

    def _send(
        self,
        status: int,
        content: bytes = b"",
        code: str = "",
        headers: dict[str, str] | None = None,
    ) -> None:
        self.send_response(status)
        sent = {**(headers or {}), "Content-Length": str(len(content))}
        if code:
            sent["X-Error-Code"] = code
        for name, value in sent.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _hash(path: pathlib.Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()


def forget() -> None:
    """Forget what this process resolved, as a new one would."""
    hub._repository.cache_clear()
    hub.data_files.cache_clear()


@contextlib.contextmanager
def serve() -> Iterator[Hub]:
    """Serve a hub until the block ends."""
    served = Hub()
    handler = type("Handler", (_Handler,), {"hub": served})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    served.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def online(tmp_path, monkeypatch) -> Iterator[Hub]:
    """A hub with no repositories, and an empty cache in `tmp_path`."""
    with serve() as served:
        template = served.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", served.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
        monkeypatch.setenv("HF_TOKEN", "")
        utils.disable_progress_bars()
        forget()
        yield served
        utils.enable_progress_bars()
        forget()
