"""Methods by name: cards, specs, and the components built from specs.

There is no registry. `Spec("drafters/copyspec", copy=10)` names a file and the
arguments of its factory. The file's folder determines the factory's name and interface.
`Spec("my_package.my_file")` names any importable module with a `CARD` and one factory,
which determines the folder whose role it has. `Built` holds a component built by hand.
"""

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from decoding import base
from models.errors import DecodaxError, MethodError, hint

# Folder of decoding/ -> the factory that every file in it has.
FACTORIES = {
    "drafters": "drafter",
    "topologies": "topology",
    "verifiers": "verifier",
    "transforms": "transform",
    "constraints": "transform",
    "caches": "policy",
    "exits": "exit_policy",
    "search": "select",
    "rewards": "reward",
    "diffusion": "scheduler",
}
KINDS = {  # other factories -> their folder
    "rank": "search",
    "prefill": "search",
    "procedure": "search",
    "lanes": "drafters",
    "estimator": "constraints",
    "canvas_policy": "caches",
    "real_verifier": "verifiers",
}


@dataclass(frozen=True)
class Card:
    """A method's description: its source, its guarantee and its factory's parameters.

    - `family` groups the methods of a folder, such as "training-free" or "truncation".
    - `needs` are the factory's parameters that the catalogue fills in (see
      `Spec.build`).
    - `data` are the arguments that only fill arrays of the state (numbers, tables,
      sources). Compositions that differ in them share one compiled program. All other
      arguments shape it.
    - `parts` are the arguments that are parts themselves, of which the factory gets the
      component: `Spec("drafters/forced", inner=Spec("drafters/copyspec"))`.
    - `trained`: whether the method has trained weights of its own.
    - `sources` are the keys of its papers in papers.bib, the first one's first; a
      baseline needs none.
    - `cite` is BibTeX of papers that papers.bib does not have.
    - `examples` are arguments for the test suite, where the factory's defaults are
      absent or larger than a test needs.
    - `kind` is the factory's name where a folder has several: a key of `KINDS`.
    - `draws` are a topology's; its factory receives the one that the verifier prefers.
    """

    paper: str
    guarantee: str
    family: str = ""
    needs: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    trained: bool = False
    sources: tuple[str, ...] = ()
    cite: str = ""
    examples: Mapping[str, Any] = field(default_factory=dict)
    draws: tuple[str, ...] = base.DRAWS
    kind: str = ""


class Spec:
    """A method file and arguments for its factory; hashable, printable.

    `name` is a file of decoding/, such as "drafters/copyspec", or a module that can be
    imported, such as "my_package.my_file".
    """

    def __init__(self, name: str, **arguments: Any):
        self.name = name
        self.arguments = {k: _frozen(v) for k, v in sorted(arguments.items())}

    @classmethod
    def parse(cls, text: str) -> "Spec":
        """Read a spec as a command line gives it: `transforms/min_p(p=0.1)`.

        Raises:
            MethodError: arguments that are no `name=literal`, separated by commas.
        """
        name, bracket, rest = text.strip().partition("(")
        if not bracket:
            return cls(name)
        try:
            call = ast.parse(f"f({rest}", mode="eval").body
            if not isinstance(call, ast.Call) or call.args:
                raise ValueError("arguments without a name")
            values = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
            return cls(name, **values)
        except (SyntaxError, ValueError, TypeError) as error:
            raise MethodError(
                f"{text!r}: write name(argument=literal, ...), as in "
                f"transforms/min_p(p=0.1) ({error})"
            ) from error

    def __repr__(self) -> str:
        parts = [repr(self.name), *(f"{k}={v!r}" for k, v in self.arguments.items())]
        return f"Spec({', '.join(parts)})"

    def __hash__(self) -> int:
        return hash((self.name, *self.arguments.items()))

    def __eq__(self, other: object) -> bool:
        return repr(self) == repr(other)

    @property
    def static(self) -> tuple:
        """The name and the arguments that shape a program: all but `Card.data`.

        Of an argument that is a part itself, what shapes a program.
        """
        data = self.card.data
        values = {**self.arguments, **self.inner}
        shaping = (x for x in values.items() if x[0] not in data)
        parts = ((k, v.static if type(v) in (Spec, Built) else v) for k, v in shaping)
        return (self.name, *parts)

    @property
    def inner(self) -> "dict[str, Spec | Built]":
        """The arguments that are parts themselves, see `Card.parts`."""
        values = self.arguments
        return {k: _part(values[k]) for k in self.card.parts if values.get(k)}

    @property
    def module(self) -> Any:
        return load(self.name)

    @property
    def card(self) -> Card:
        return self.module.CARD

    @property
    def folder(self) -> str:
        """The folder of decoding/ whose role the file has."""
        return folder_of(self.name)

    @property
    def factory(self) -> Callable:
        """The file's function that builds the component."""
        return getattr(self.module, self.card.kind or FACTORIES[self.folder])

    @property
    def required(self) -> list[str]:
        """Arguments without a default that neither the spec nor `needs` supplies."""
        parameters = inspect.signature(self.factory).parameters
        supplied = {*self.arguments, *self.card.needs}
        return [
            n
            for n, p in parameters.items()
            if p.default is p.empty and n not in supplied
        ]

    def build(self, available: Mapping[str, Any]) -> Any:
        """Build the component, with the parameters of `CARD.needs` from `available`.

        Raises:
            MethodError: an unknown argument, a missing need, or a refused value.
        """
        known = inspect.signature(self.factory).parameters
        for name in self.arguments:
            if name not in known:
                takes = [p for p in known if p not in self.card.needs]
                raise MethodError(
                    f"{self.name} has no argument {name!r}{hint(name, takes)}; it "
                    f"takes {takes or 'none'}"
                )
        filled = {}
        for name in self.card.needs:
            if name in self.arguments:
                continue
            if name in available:
                filled[name] = available[name]
            elif known[name].default is inspect.Parameter.empty:
                raise MethodError(f"{self.name} needs {name!r}: {_remedy(name)}")
        parts = {name: part.build(available) for name, part in self.inner.items()}
        try:
            return self.factory(**{**filled, **self.arguments, **parts})
        except DecodaxError:
            raise
        except (TypeError, ValueError) as error:
            raise MethodError(f"{self} cannot be built: {error}") from error


@dataclass(frozen=True)
class Built:
    """A component that was built by hand; no config can name it."""

    name: str
    folder: str
    part: Any
    card: Card = field(compare=False)
    arguments: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def static(self) -> tuple:
        return ("built", self.part)

    def build(self, available: Mapping[str, Any]) -> Any:
        return self.part


@dataclass(frozen=True)
class PerPrompt:
    """A transform with other numbers for each prompt: one `Spec` a prompt.

    The specs name one file and may differ in the arguments of `Card.data` alone, which
    shape no program.

    Raises:
        MethodError: no spec, something else than a spec, or other differences.
    """

    parts: tuple[Spec, ...]

    def __post_init__(self) -> None:
        wrong = [part for part in self.parts if type(part) is not Spec]
        if wrong or not self.parts:
            raise MethodError(
                f"a list in transforms holds one Spec a prompt, not {wrong or 'none'}: "
                "name the file of the transform"
            )
        first = self.parts[0]
        for part in self.parts:
            if part.static != first.static:
                data = list(first.card.data) or "none"
                raise MethodError(
                    f"one transform a prompt: {first} and {part} differ in more than "
                    f"numbers: of {first.name} only {data} may differ; decode these "
                    "prompts in calls of their own"
                )

    @property
    def name(self) -> str:
        return self.parts[0].name

    @property
    def card(self) -> Card:
        return self.parts[0].card

    @property
    def static(self) -> tuple:
        return self.parts[0].static

    def build(self, available: Mapping[str, Any]) -> Any:
        return self.parts[0].build(available)


Part = Spec | Built | PerPrompt


def cards(part: Part) -> tuple[Card, ...]:
    """Return a part's card, and those of the parts among its arguments."""
    inner = part.inner.values() if type(part) is Spec else ()
    return (part.card, *(card for each in inner for card in cards(each)))


def _frozen(value: Any) -> Any:
    """Convert lists and dicts, as config files have them, to hashable tuples."""
    if type(value) in (list, tuple):
        return tuple(_frozen(v) for v in value)
    if type(value) is dict:
        return tuple(sorted((k, _frozen(v)) for k, v in value.items()))
    return value


def _part(value: Any) -> Spec | Built:
    """Read an argument that is a part: as a config has it, a name or a dict."""
    if type(value) in (Spec, Built):
        return value
    try:
        return Spec(value) if type(value) is str else Spec(**dict(value))
    except (TypeError, ValueError) as error:
        raise MethodError(
            f"{value!r} names no part: write Spec(folder/file, ...), or in a config a "
            "dict with `name`"
        ) from error


def _remedy(name: str) -> str:
    hints = {
        "tokenizer": "the model directory has no tokenizer.json; add one",
        "topology": "give the method a topology=Spec(...)",
        "inner": "put a reward before it, as in rewards=(Spec(...), this one)",
    }
    if name in base.Params.__annotations__:
        kinds = {"draft": "models.load(...)", "reward": "a model or a head's params"}
        value = kinds.get(name, "params")
        return f'pass drafts={{"{name}": {value}}} to generate'
    return hints.get(name, "give it as an argument of the Spec")


def names(folder: str) -> list[str]:
    """List the spec names of a folder's method files."""
    package = importlib.import_module(f"decoding.{folder}")
    specs = []
    for info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"decoding.{folder}.{info.name}")
        kind = getattr(vars(module).get("CARD"), "kind", "")
        if info.name[0] != "_" and (kind or FACTORIES[folder]) in vars(module):
            specs.append(f"{folder}/{info.name}")
    return sorted(specs)


def of_kind(folder: str, kind: str = "") -> list[str]:
    """List a folder's files by `Card.kind`; "": those with its usual factory."""
    return [name for name in names(folder) if load(name).CARD.kind == kind]


def catalogue() -> dict[str, Card]:
    """Map the spec name of every method to its card."""
    every = [name for folder in FACTORIES for name in names(folder)]
    return {name: load(name).CARD for name in every}


def load(name: str) -> Any:
    """Import the module of a spec name.

    Args:
        name: "drafters/copyspec", or the dotted name of a module outside decodax.

    Raises:
        MethodError: no such file or module, or a module without a card or a factory.
    """
    if is_outside(name):
        return _load_outside(name)
    folder, _, file = name.partition("/")
    if folder not in FACTORIES or not file:
        files = {file.rpartition("/")[2]: file for f in FACTORIES for file in names(f)}
        near = hint(name, files, files)
        raise MethodError(
            f"{name!r} is no method name{near}: write folder/file, with a folder of "
            f"{sorted(FACTORIES)}, or the dotted name of a module"
        )
    siblings = names(folder)
    if name not in siblings:
        raise MethodError(
            f"no method {name!r}{hint(name, siblings)}; use one of {siblings}"
        )
    return importlib.import_module(f"decoding.{folder}.{file}")


def is_outside(name: str) -> bool:
    """Return whether `name` is a module's dotted name, not a file of decoding/."""
    parts = name.split(".")
    return len(parts) > 1 and all(part.isidentifier() for part in parts)


def folder_of(name: str) -> str:
    """Return the folder of decoding/ whose role the spec name has."""
    if is_outside(name):
        return _roles(load(name))[0]
    return name.partition("/")[0]


def _roles(module: Any) -> list[str]:
    """List the folders whose factory the module itself defines."""
    own = {
        name
        for name, value in vars(module).items()
        if getattr(value, "__module__", None) == module.__name__
    }
    folders = [f for f in FACTORIES if f != "constraints"]  # a transform, by its code
    found = [folder for folder in folders if FACTORIES[folder] in own]
    return found + [folder for kind, folder in KINDS.items() if kind in own]


def _load_outside(name: str) -> Any:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise MethodError(
            f"no module {name!r} ({error}): install its package, or run in the folder "
            "that holds it"
        ) from error
    roles, factories = _roles(module), sorted(set(FACTORIES.values()))
    if len(roles) != 1:
        defined = [FACTORIES[role] for role in roles] or "none"
        raise MethodError(
            f"{name} defines {defined} of the factories {factories}: define one"
        )
    if type(vars(module).get("CARD")) is not Card:
        raise MethodError(f"{name} has no CARD: write CARD = decoding.Card(...)")
    return module
