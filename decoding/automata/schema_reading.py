"""JSON schemas as nodes: references resolved, equal schemas shared, faults named.

A `Node` holds the keywords of a schema object that bear on which instances are valid,
in the schema's order, with subschemas as nodes. Nodes are equal where their contents
are, so that equal schemas are compiled once. References are resolved when used.

Keywords have the meaning of the draft that `$schema` names: 4, 6, 7, 2019-09 or
2020-12, which is also the default. Keywords of other drafts are read as well, for
schemas mix them: the spelling `dependencies` and an array of `items` hold everywhere.
"""

import json
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from models.errors import ConstraintError, hint

_ONE = {
    "additionalProperties", "additionalItems", "propertyNames", "not", "if", "then",
    "else",
}  # fmt: skip
_LISTS = {"allOf", "anyOf", "oneOf", "prefixItems"}
_MAPS = {"properties", "patternProperties", "dependentSchemas"}
_PLAIN = {
    "type", "enum", "const", "required", "dependentRequired", "pattern", "format",
    "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
}  # fmt: skip
_OTHER = {  # keywords that `schema_keywords` refuses for the values that they bear on
    "uniqueItems", "contains", "unevaluatedProperties", "unevaluatedItems", "extends",
    "$dynamicRef", "$recursiveRef", "disallow", "divisibleBy",
}  # fmt: skip
_COUNTS = {
    "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
}  # fmt: skip
_NUMBERS = {"minimum", "maximum", "multipleOf"}


def refused(path: str, keyword: str, problem: str, remedy: str) -> ConstraintError:
    """Make the error of a `keyword` at the JSON pointer `path`."""
    where = f"the JSON schema at {path or '/'}"
    return ConstraintError(f"{where}: {keyword!r} {problem}; {remedy}")


def canonical(value: Any) -> str:
    """Return the JSON text of `value`, by which values of schemas are compared."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class Node:
    """A schema: True, False, or keywords that apply together."""

    __slots__ = ("keywords", "path")

    def __init__(self, keywords: dict[str, Any], path: str):
        self.keywords, self.path = keywords, path

    def __repr__(self) -> str:
        return f"Node({self.path})"


def _draft(schema: Any) -> int:
    name = schema.get("$schema") if isinstance(schema, dict) else None
    if isinstance(name, str):
        for draft in (3, 4, 6, 7):
            if f"draft-0{draft}" in name:
                return draft
        if "2019-09" in name:
            return 2019
    return 2020


class Reader:
    """The nodes of one schema document."""

    def __init__(self, document: Any):
        self.draft = _draft(document)
        self.id = "id" if self.draft <= 4 else "$id"
        self.nodes: dict[tuple, Node] = {}
        self.true, self.false = Node({}, ""), Node({"false": True}, "")
        self.document = document
        self.resources: dict[str, Any] | None = None  # of each URI, made when needed
        self.targets: dict[str, Node] = {}
        self.root = self.node(document, "", "")

    def node(self, schema: Any, base: str, path: str) -> Node:
        """Return the node of `schema`, whose references are relative to `base`.

        Raises:
            ConstraintError: the schema is malformed or has a refused keyword.
        """
        if schema is True or schema is False:
            return self.true if schema else self.false
        if not isinstance(schema, dict):
            raise ConstraintError(
                f"the JSON schema at {path or '/'} is {canonical(schema)[:40]}, not an "
                "object or a boolean: write {} for any value"
            )
        if self.draft <= 7 and "$ref" in schema:
            schema = {"$ref": schema["$ref"]}  # its neighbours do not count
        base = self._base(schema, base)
        keywords: dict[str, Any] = {}
        content: list[Any] = []
        for keyword, value in schema.items():
            read = self._keyword(keyword, value, base, f"{path}/{_escaped(keyword)}")
            if read is not None:
                keywords[keyword], key = read
                content.append((keyword, key))
        if not keywords:
            return self.true
        return self._shared(tuple(content), keywords, path)

    def _shared(self, content: tuple, keywords: dict[str, Any], path: str) -> Node:
        if content not in self.nodes:
            self.nodes[content] = Node(keywords, path)
        return self.nodes[content]

    def literal(self, value: Any, path: str) -> Node:
        """Return the node whose only instance is `value`."""
        return self._shared((("const", canonical(value)),), {"const": value}, path)

    def _base(self, schema: dict, base: str) -> str:
        name = schema.get(self.id)
        if isinstance(name, str) and not name.startswith("#"):
            return urldefrag(urljoin(base, name))[0]
        return base

    def _keyword(self, keyword: str, value: Any, base: str, path: str) -> Any:
        """Return (value, content) of a keyword that is enforced; else None."""
        if keyword in _ONE or (keyword == "items" and not isinstance(value, list)):
            node = self.node(value, base, path)
            return node, node
        if keyword in _LISTS or keyword == "items":
            if not isinstance(value, list):
                raise refused(path, keyword, "is no array", "list the schemas")
            nodes = [self.node(v, base, f"{path}/{i}") for i, v in enumerate(value)]
            return nodes, tuple(nodes)
        if keyword in _MAPS or keyword == "dependencies":
            if not isinstance(value, dict):
                raise refused(path, keyword, "is no object", "map names to schemas")
            entries = {
                name: _names(path, name, v)
                if isinstance(v, list) and keyword == "dependencies"
                else self.node(v, base, f"{path}/{_escaped(name)}")
                for name, v in value.items()
            }
            return entries, tuple(entries.items())
        if keyword == "$ref":
            if not isinstance(value, str):
                raise refused(path, keyword, "is no string", "name a local schema")
            target = (
                urljoin(base, value) if base or not value.startswith("#") else value
            )
            return (target, path), target
        if keyword in _OTHER:
            if keyword == "uniqueItems" and value is False:
                return None
            return (value, path), (canonical(value), path)
        if keyword not in _PLAIN:
            return None
        _check(path, keyword, value)
        if keyword == "required":
            value = _names(path, keyword, value)
        if keyword == "dependentRequired":
            value = {name: _names(path, name, v) for name, v in value.items()}
        return value, canonical(value)

    def target(self, reference: str, path: str) -> Node:
        """Return the node to which `reference`, an absolute URI, refers.

        Raises:
            ConstraintError: it is remote or does not exist.
        """
        if reference not in self.targets:
            self.targets[reference] = self._resolved(reference, path)
        return self.targets[reference]

    def _resolved(self, reference: str, path: str) -> Node:
        uri, _, fragment = reference.partition("#")
        if self.resources is None:
            self.resources = {"": self.document}
            self._index(self.document, "")
            if isinstance(self.document, dict):
                # The document's name counts even beside $ref, in every draft.
                self.resources.setdefault(self._base(self.document, ""), self.document)
        pointer = not fragment or fragment.startswith("/")
        key = uri if pointer else f"{uri}#{unquote(fragment)}"
        if key not in self.resources:
            raise refused(
                path,
                "$ref",
                f"refers to {reference!r}, which is not in the schema"
                f"{hint(key, self.resources)}",
                "copy the schema into $defs and refer to it there",
            )
        schema, base = self.resources[key], uri
        if not pointer:
            return self.node(schema, uri, f"/{_escaped(fragment)}")
        for part in fragment.split("/")[1:]:
            if isinstance(schema, dict):
                base = self._base(schema, base)
            part = unquote(part).replace("~1", "/").replace("~0", "~")
            if (
                isinstance(schema, list)
                and part.isdecimal()
                and int(part) < len(schema)
            ):
                schema = schema[int(part)]
            elif isinstance(schema, dict) and part in schema:
                schema = schema[part]
            else:
                raise refused(
                    path,
                    "$ref",
                    f"refers to {reference!r}, of which {part!r} does not exist",
                    "name an entry of $defs or definitions",
                )
        return self.node(schema, base, fragment)

    def _index(self, schema: Any, base: str) -> None:
        """Note the resources and anchors in `schema`, by their absolute URIs."""
        assert self.resources is not None
        if not isinstance(schema, dict):
            return
        name = schema.get(self.id)
        if isinstance(name, str) and not (self.draft <= 7 and "$ref" in schema):
            if name.startswith("#"):
                self.resources.setdefault(f"{base}{name}", schema)
            else:
                base = urldefrag(urljoin(base, name))[0]
                self.resources.setdefault(base, schema)
        for anchor in ("$anchor", "$dynamicAnchor"):
            if isinstance(schema.get(anchor), str):
                self.resources.setdefault(f"{base}#{schema[anchor]}", schema)
        for keyword, value in schema.items():
            if keyword in _MAPS | {"$defs", "definitions", "dependencies"}:
                if isinstance(value, dict):
                    for inner in value.values():
                        self._index(inner, base)
            elif keyword in _ONE | _LISTS | {"items"} | _OTHER:
                for inner in value if isinstance(value, list) else [value]:
                    self._index(inner, base)


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _names(path: str, keyword: str, value: Any) -> tuple[str, ...]:
    if not (isinstance(value, list) and all(isinstance(v, str) for v in value)):
        raise refused(path, keyword, "is no array of strings", "list property names")
    return tuple(dict.fromkeys(value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check(path: str, keyword: str, value: Any) -> None:
    if keyword in _COUNTS and not (
        _is_number(value) and value >= 0 and value == int(value)
    ):
        raise refused(path, keyword, f"is {value!r}", "use an integer of 0 or more")
    if keyword in _NUMBERS and not _is_number(value):
        raise refused(path, keyword, f"is {value!r}", "use a number")
    if keyword == "multipleOf" and value <= 0:
        raise refused(path, keyword, f"is {value!r}", "use a number above 0")
    if keyword.startswith("exclusive") and not isinstance(value, bool | int | float):
        raise refused(path, keyword, f"is {value!r}", "use a number")
    if keyword == "enum" and not isinstance(value, list):
        raise refused(path, keyword, "is no array", "list the values")
    if keyword in ("pattern", "format") and not isinstance(value, str):
        raise refused(path, keyword, f"is {value!r}", "use a string")
    if keyword == "dependentRequired" and not isinstance(value, dict):
        raise refused(path, keyword, "is no object", "map names to lists of names")
