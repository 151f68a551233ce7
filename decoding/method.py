"""A decoding method: its parts, and its form in a config."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from decoding import built, catalogue
from decoding.catalogue import Built, Part, Spec
from models.errors import MethodError

ROLES = {  # field of a method -> folder of its files
    "drafter": "drafters",
    "verifier": "verifiers",
    "topology": "topologies",
    "policy": "caches",
    "exit": "exits",
    "search": "search",
}
LISTS = {  # field of several parts -> folders of their files
    "transforms": ("transforms", "constraints"),
    "rewards": ("rewards",),
    "schedule": ("diffusion",),
}
KNOWN = (*ROLES, *LISTS)  # the fields of a method

PLAIN = Spec("drafters/plain")


@dataclass(frozen=True)
class Method:
    """A composed decoding method.

    `drafter` None is plain decoding: one token a call. `verifier` None is the default:
    greedy at temperature 0, Gumbel-coupled above it, where the text is a function of
    seed, request and target alone. `exit` None runs all layers of the target. A
    `search` keeps several hypotheses: as rows under any of the other roles, or as the
    leaves of a tree, with none of them. `rewards` are what a search values texts by:
    one, and then those that wrap it, such as `rewards/calibrated`. A `schedule` is for
    diffusion models, whose loop is another: its parts are merged, one of them chooses
    the positions. A part is a `Spec`,
    or a component that was built by hand, such as a `base.LogitsTransform`; a transform
    may also be a function (see `built.function_transform`), and so may a reward.
    """

    drafter: Part | None = None
    verifier: Part | None = None
    topology: Part | None = None
    transforms: tuple[Part, ...] = ()
    policy: Part = field(default_factory=lambda: Spec("caches/dense"))
    exit: Part | None = None
    search: Part | None = None
    rewards: tuple[Part, ...] = ()
    schedule: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        for role, folder in ROLES.items():
            value = getattr(self, role)
            if value is not None:
                object.__setattr__(self, role, built.part(value, folder))
        for name in LISTS:
            folder = LISTS[name][0]
            parts = tuple(built.part(part, folder) for part in getattr(self, name))
            object.__setattr__(self, name, parts)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Method":
        """Build a method from its config.

        A part is a name, as in `{"drafter": "drafters/x"}`, or a dict of its name and
        arguments.

        Raises:
            MethodError: an unknown field, a wrong folder, or no part at all.
        """

        def spec(value: Any, *folders: str) -> Spec:
            fields = {"name": value} if type(value) is str else _fields(value)
            name = fields.get("name")
            if type(name) is not str or catalogue.folder_of(name) not in folders:
                raise MethodError(
                    f"{value!r}: write {folders[0]}/file, or the dotted name of a "
                    f"module with a {catalogue.FACTORIES[folders[0]]}(), or a dict "
                    "with such a `name`"
                )
            if not all(type(field) is str for field in fields):
                raise MethodError(f"{value!r}: name every argument with a string")
            return Spec(**fields)

        entries = _fields(config)
        if not entries:
            raise MethodError(f"the method is empty: name at least one part of {KNOWN}")
        unknown = set(entries) - {*KNOWN}
        if unknown:
            raise MethodError(
                f"a method has no {sorted(unknown, key=str)}; use {KNOWN}"
            )
        parts: dict[str, Any] = {
            r: spec(entries[r], f) for r, f in ROLES.items() if entries.get(r)
        }
        lists: dict[str, Any] = {}
        for name, folders in LISTS.items():
            specs = entries.get(name, ())
            if type(specs) not in (list, tuple):
                raise MethodError(f"{name}={specs!r}: write a list")
            lists[name] = tuple(spec(v, *folders) for v in specs)
        return cls(**lists, **parts)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts that the method names."""
        roles = [getattr(self, role) for role in ROLES]
        lists = (part for name in LISTS for part in getattr(self, name))
        return (*(spec for spec in roles if spec is not None), *lists)

    @property
    def needs(self) -> set[str]:
        """The parameters that the parts' factories need filled in; see `Card.needs`."""
        cards = (card for part in self.parts for card in catalogue.cards(part))
        return {need for card in cards for need in card.needs}

    def to_config(self) -> dict[str, Any]:
        """Write the method as the dict that `from_config` reads; JSON can hold it.

        Raises:
            MethodError: a part was built by hand.
        """

        def written(spec: Part) -> dict[str, Any]:
            if type(spec) is Built:
                raise MethodError(
                    f"{spec.name} was built by hand, and a config names parts: put its "
                    'factory into a module and write Spec("package.module")'
                )
            if type(spec) is not Spec:
                raise MethodError(
                    f"{spec.name} has numbers for each prompt, and a config is for all "
                    "prompts: give them to generate(transforms=...)"
                )
            return {"name": spec.name, **spec.arguments}

        parts = {role: getattr(self, role) for role in ROLES}
        entries = {r: written(s) for r, s in parts.items() if s is not None}
        lists = {name: [written(s) for s in getattr(self, name)] for name in LISTS}
        return entries | {n: v for n, v in lists.items() if v or n == "transforms"}

    def with_drafter(self, **arguments: Any) -> "Method":
        """Replace arguments of the method's drafter."""
        spec = self.drafter or PLAIN
        if type(spec) is not Spec:
            raise MethodError(f"{spec.name} takes no arguments: build another one")
        merged = {**spec.arguments, **arguments}
        return replace(self, drafter=Spec(spec.name, **merged))


def _fields(value: Any) -> dict[Any, Any]:
    """Convert a mapping of any kind, such as a `ConfigDict`, to a dict."""
    if not callable(getattr(value, "keys", None)):
        raise MethodError(f"{value!r}: write a dict")
    return dict(value)
