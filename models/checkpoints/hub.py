"""Models, heads and data files of the Hugging Face hub, by name.

`owner/name` or `owner/name@revision` names a repository. Files of data sets have the
hub's own addresses, `hf://datasets/owner/name@revision/path`. huggingface_hub does the
work and reads the environment: cache, resuming, progress bars, token, HF_ENDPOINT,
HF_HUB_OFFLINE. Of models only safetensors, JSON and chat templates are downloaded.

A process resolves a name once, so it never mixes two commits of a branch. Processes on
one host share a cache, whose files have locks; each host fills its own. A branch may
move between two hosts' downloads: give a commit there.
"""

import fnmatch
import functools
import os
import pathlib
import re
import urllib.parse
from collections.abc import Callable
from typing import Any

from models import storage
from models.errors import CheckpointError, DataError, DecodaxError

REPOSITORY = re.compile(r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>.+))?")
SCHEME = "hf://"
# Revisions with slashes are percent-encoded, but for the hub's own, as in fsspec.
DATA = re.compile(
    r"hf://datasets/(?P<repo>\w[\w.-]*/\w[\w.-]*)"
    r"(@(?P<revision>refs/(?:convert/\w+|pr/\d+)|[^/]+))?/(?P<path>.+)"
)
# Files of a repository that are downloaded: for a model or heads, for a tokenizer, for
# shapes alone.
MODEL = ("*.safetensors", "*.json", "*.jinja")
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
CONFIG = ("config.json",)
# Subfolders hold other formats, and consolidated files a copy of the shards' weights.
IGNORED = ("*/*", "consolidated*")


def local(
    name: str | os.PathLike,
    revision: str | None = None,
    files: tuple[str, ...] = MODEL,
) -> storage.Path:
    """Return a path as it is, or download a repository and return its folder.

    Args:
        name: a path; or a string `owner/name` or `owner/name@revision`, where no file
            or directory has that path.
        revision: a branch, tag or commit of the repository; None: that of the name, or
            the main branch.
        files: patterns of the file names to download.

    Raises:
        CheckpointError: the repository or revision is missing, gated, cannot be
            reached or has no safetensors; or a path has a revision.
    """
    path = storage.path(name)
    known = isinstance(name, str) and not path.exists()
    match = REPOSITORY.fullmatch(str(name)) if known else None
    if match is None:
        if revision is not None:
            raise CheckpointError(
                f"revision={revision!r} of {str(name)!r}, which is no repository "
                "owner/name of the hub: leave the revision out"
            )
        return path
    if revision is not None and match["revision"] not in (None, revision):
        raise CheckpointError(
            f"{name!r} and revision={revision!r} name two revisions: give one"
        )
    return _repository(match["repo"], revision or match["revision"], files)


def is_data(source: str | os.PathLike) -> bool:
    """Return whether a source is an address `hf://...` and not a path."""
    return isinstance(source, str) and source.startswith(SCHEME)


@functools.cache
def data_files(address: str) -> tuple[pathlib.Path, ...]:
    """Download the files of `hf://datasets/owner/name@revision/path`.

    In the path, `*`, `?` and `[..]` match several files, `*` also across folders.
    Returns the local paths, sorted. Raises `DataError` for another form of address, and
    where the data set, revision or file is missing, gated or cannot be reached.
    """
    match = DATA.fullmatch(address)
    if match is None:
        raise DataError(
            f"{address!r} names no file of a data set: write "
            "hf://datasets/owner/name/path or hf://datasets/owner/name@revision/path"
        )
    repo, path = match["repo"], match["path"]
    revision = urllib.parse.unquote(match["revision"] or "") or None
    place: dict[str, Any] = {
        "repo_id": repo,
        "revision": revision,
        "repo_type": "dataset",
    }

    def download() -> list[str]:
        # Slow to import (a second), and only needed here.
        from huggingface_hub import hf_hub_download, snapshot_download

        if not any(letter in path for letter in "*?["):
            return [hf_hub_download(filename=path, **place)]
        folder = pathlib.Path(snapshot_download(allow_patterns=path, **place))
        names = (x.relative_to(folder) for x in folder.rglob("*") if x.is_file())
        chosen = (x for x in names if fnmatch.fnmatch(x.as_posix(), path))
        return sorted(str(folder / x) for x in chosen)

    paths = _explained(download, repo, revision, "datasets/", DataError)
    if not paths:
        raise DataError(f"{repo} has no file {path!r}: see the files on its page")
    return tuple(map(pathlib.Path, paths))


@functools.cache
def _repository(
    repo: str, revision: str | None, files: tuple[str, ...]
) -> pathlib.Path:
    """Download the root files of a repository that match a pattern."""

    def download() -> str:
        from huggingface_hub import snapshot_download

        return snapshot_download(
            repo, revision=revision, allow_patterns=[*files], ignore_patterns=[*IGNORED]
        )

    folder = pathlib.Path(_explained(download, repo, revision, "", CheckpointError))
    if files == MODEL and not any(folder.glob("*.safetensors")):
        raise CheckpointError(
            f"{repo} has no safetensors file in its root: weights in other formats are "
            "not downloaded, as pickles can run code; choose a revision or repository "
            "with safetensors, or convert the weights"
        )
    return folder


def _explained(
    download: Callable[[], Any],
    repo: str,
    revision: str | None,
    kind: str,
    error: type[DecodaxError],
) -> Any:
    """Run a download; raise `error` with the remedy where it fails.

    `kind` is the first part of the repository's address, "" for models.
    """
    try:
        return download()
    except Exception as cause:
        # Connections fail with errors of whichever HTTP library huggingface_hub has.
        raise error(_remedy(cause, repo, revision, kind)) from cause


def _remedy(cause: Exception, repo: str, revision: str | None, kind: str) -> str:
    """Describe why a download failed, and what to do."""
    from huggingface_hub import constants, errors

    page = f"{constants.ENDPOINT}/{kind}{repo}"
    whole = f"{repo}@{revision}" if revision else repo
    absent = "" if kind else f"no file or directory has the path {whole!r}, and "
    if isinstance(cause, errors.GatedRepoError):
        return (
            f"{repo} is gated: accept its terms at {page}, and set HF_TOKEN to a token "
            "of the account that did"
        )
    if isinstance(cause, errors.RepositoryNotFoundError):
        return (
            f"{absent}{constants.ENDPOINT} has no repository {kind}{repo} that you may "
            "read: correct the name, or set HF_TOKEN if it is private"
        )
    if isinstance(cause, errors.RevisionNotFoundError):
        return f"{repo} has no revision {revision!r}: use a branch, tag or commit"
    if constants.HF_HUB_OFFLINE:
        return (
            f"{absent}HF_HUB_OFFLINE is set while {whole} is not complete in the cache "
            f"{constants.HF_HUB_CACHE}: download it once without HF_HUB_OFFLINE"
        )
    # Where nothing is cached, the reason is the cause of "not cached".
    reason = cause.__cause__ or cause
    text = " ".join(str(reason).split())
    status = getattr(getattr(reason, "response", None), "status_code", None)
    if status == 404:
        return f"{whole} has no such file ({text}): see the files at {page}"
    if status in (401, 403):
        return f"{page} refuses the token ({text}): correct HF_TOKEN"
    if isinstance(cause, errors.LocalEntryNotFoundError):
        return (
            f"{absent}{page} cannot be reached ({text}), and {whole} is not in the "
            f"cache {constants.HF_HUB_CACHE}: check the network, proxy and "
            "HF_ENDPOINT, or copy the files and give their path"
        )
    return (
        f"{whole} was not downloaded ({type(reason).__name__}: {text}): correct the "
        "name, or run the same command again, which resumes the download"
    )
