"""Instruction bundles as the TPU compiler writes them: one VLIW bundle, one line."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

DELAY_SLOTS = 4  # bundles after a branch that run whether or not it is taken
_BUNDLE = re.compile(r"\s*(?:0x)?([0-9a-f]+)\s+(\w\w)?\s*:\s*(>*)\s*\{(.*)")
_CLOSED = re.compile(r"\}\s*(?:/\*[^}]*\*/\s*)?\Z")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_BRANCH = re.compile(r"sbr\.rel (?:\((!?)(%p\w+)\) )?target = \$region(\d+)\b")
_REGION = re.compile(r"Start(?:/End empty)? region (\d+)")


class BundlesError(RuntimeError):
    """The compiler wrote no final bundles, or in a form that is not understood."""


@dataclass(frozen=True)
class Bundle:
    """One bundle: what a core issues in a cycle."""

    label: str  # LB: a loop's body begins; PF: branches arrive
    depth: int  # of loops
    text: str

    @property
    def regions(self) -> list[str]:
        """The regions that begin here: where branches arrive."""
        return _REGION.findall(self.text)

    def operations(self) -> Iterator[str]:
        """Yield the text of each operation."""
        for part in _CLOSED.sub("", self.text).split("  ;;  "):
            yield part.strip()


@dataclass(frozen=True)
class Branch:
    """A relative branch; it is taken where the predicate is not `negated`."""

    predicate: str  # "": always taken
    negated: bool
    region: str


def parse(text: str) -> list[Bundle]:
    """Read the bundles of a program, in order; [] where there are none."""
    bundles: list[Bundle] = []
    for line in text.splitlines():
        match = _BUNDLE.match(line)
        if match:
            depth = len(match[3])
            if bundles and match[4].startswith("}"):  # empty bundles have no marks
                depth = bundles[-1].depth
            bundles.append(Bundle(match[2] or "", depth, match[4]))
        elif bundles:  # a bundle may take several lines
            last = bundles[-1]
            bundles[-1] = replace(last, text=f"{last.text}\n{line}")
    return bundles


def branch(bundle: Bundle) -> Branch | None:
    """Return the branch of a bundle, if it has one."""
    match = _BRANCH.search(bundle.text)
    return Branch(match[2] or "", bool(match[1]), match[3]) if match else None


def without_comments(operation: str) -> str:
    """Return an operation without comments."""
    return _COMMENT.sub("", operation).strip()
