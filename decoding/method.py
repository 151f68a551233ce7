"""A decoding method: the parts it is composed of, and its form in a config."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from decoding.catalogue import Spec
from models.errors import MethodError

ROLES = {  # and the folder that each is chosen from
    "drafter": "drafters",
    "verifier": "verifiers",
    "topology": "topologies",
    "policy": "caches",
    "exit": "exits",
}
KNOWN = (*ROLES, "transforms")  # the fields of a method

PLAIN = Spec("drafters/plain")


@dataclass(frozen=True)
class Method:
    """A composed decoding method.

    `drafter` None is plain decoding: one token a call. `verifier` None is the default:
    greedy at temperature 0, Gumbel-coupled above it, where the text is a function of
    seed, request and target alone. `exit` None runs all layers of the target.
    """

    drafter: Spec | None = None
    verifier: Spec | None = None
    topology: Spec | None = None
    transforms: tuple[Spec, ...] = ()
    policy: Spec = field(default_factory=lambda: Spec("caches/dense"))
    exit: Spec | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "transforms", tuple(self.transforms))

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Method":
        """A method from strings: `{"drafter": "drafters/x"}`, or a dict for a spec."""

        def spec(value: Any, *folders: str) -> Spec:
            fields = {"name": value} if type(value) is str else _fields(value)
            named = fields.get("name")
            if type(named) is not str or named.partition("/")[0] not in folders:
                raise MethodError(
                    f"{value!r}: write {folders[0]}/file, or a dict with it as the name"
                )
            if not all(type(field) is str for field in fields):
                raise MethodError(f"{value!r}: arguments have names")
            return Spec(**fields)

        given = _fields(config)
        if not given:
            raise MethodError(f"a method names at least one part of {KNOWN}")
        unknown = set(given) - {*KNOWN}
        if unknown:
            raise MethodError(
                f"a method has no {sorted(unknown, key=str)}; it has {KNOWN}"
            )
        parts = {r: spec(given[r], f) for r, f in ROLES.items() if given.get(r)}
        listed = given.get("transforms", ())
        if type(listed) not in (list, tuple):
            raise MethodError(f"transforms={listed!r}: write a list")
        transforms = tuple(spec(v, "transforms", "constraints") for v in listed)
        return cls(transforms=transforms, **parts)

    @property
    def parts(self) -> tuple[Spec, ...]:
        """The parts that the method names."""
        roles = [getattr(self, role) for role in ROLES]
        return (*(spec for spec in roles if spec is not None), *self.transforms)

    @property
    def needs(self) -> set[str]:
        """Everything that the parts are handed; see `Card.needs`."""
        return {need for spec in self.parts for need in spec.card.needs}

    def to_config(self) -> dict[str, Any]:
        """The dict that `from_config` reads the method from; JSON holds it."""

        def written(spec: Spec) -> dict[str, Any]:
            return {"name": spec.name, **spec.arguments}

        parts = {role: getattr(self, role) for role in ROLES}
        found = {r: written(s) for r, s in parts.items() if s is not None}
        return found | {"transforms": [written(s) for s in self.transforms]}

    def with_drafter(self, **arguments: Any) -> "Method":
        """The same method with other arguments for its drafter."""
        spec = self.drafter or PLAIN
        given = {**spec.arguments, **arguments}
        return replace(self, drafter=Spec(spec.name, **given))


def _fields(value: Any) -> dict[Any, Any]:
    """A mapping of any kind, a `ConfigDict` for one, as a dict."""
    if not callable(getattr(value, "keys", None)):
        raise MethodError(f"{value!r}: write a dict")
    return dict(value)
