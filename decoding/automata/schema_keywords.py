"""The formula of a schema for one kind of value: null, true, false, number, string, …

For one kind most keywords are true and `type` is a constant, so that what remains are
few atoms. They are tuples that begin with their name:

    string   ("words", frozenset of strings) · ("pattern", tree) ·
             ("length", low, high)
    number   ("integer", is_spelled_so) · ("compare", Decimal, signs) ·
             ("multiple", numerator, places) · ("numbers", frozenset of Decimals)
    array    ("items", nodes of the first items, node of the rest) · ("size", low, high)
    object   ("members", Members) · ("required", names) ·
             ("count", Count)

No bound from above is None.
"""

from decimal import Decimal
from typing import Any, NamedTuple

from decoding.automata import ecma_syntax, schema_formats
from decoding.automata.schema_formulas import FALSE, TRUE, Formula, Logic
from decoding.automata.schema_reading import Node, Reader, refused

KINDS = ("null", "true", "false", "number", "string", "array", "object")
_TYPES = {
    "null": {"null"},
    "true": {"boolean"},
    "false": {"boolean"},
    "number": {"number", "integer"},
    "string": {"string"},
    "array": {"array"},
    "object": {"object"},
}
_REFUSED = {
    "array": ("uniqueItems", "contains", "unevaluatedItems"),
    "object": ("unevaluatedProperties",),
    "number": ("divisibleBy",),
    "any": ("extends", "disallow", "$dynamicRef", "$recursiveRef"),
}
_REMEDIES = {
    "uniqueItems": "drop it or set it to false",
    "contains": "state the items by position",
    "unevaluatedProperties": "use additionalProperties",
    "unevaluatedItems": "use items",
    "divisibleBy": "use multipleOf",
    "extends": "use allOf",
    "disallow": "use not",
}


_CONDITIONS = {"not", "if", "dependencies", "dependentRequired", "dependentSchemas"}


class Members(NamedTuple):
    """What a schema says of an object's members by their names."""

    declared: tuple[tuple[str, Node], ...]
    patterns: tuple[tuple[Formula, Node], ...]  # of the name, as of a string
    rest: Node


class Count(NamedTuple):
    """A bound of the number of members, and the members so far.

    A name that the schema does not declare may repeat, so there are two counts.
    """

    low: int
    high: int | None
    least: int = 0  # different names, for certain
    most: int = 0
    is_free: bool = False  # a name that is not declared was read


def kind_of(value: Any) -> str:
    """Return the kind of a JSON value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def decimal(value: int | float) -> Decimal:
    """Return the number that a schema spells, exactly."""
    return Decimal(repr(value)) if isinstance(value, float) else Decimal(value)


class Keywords:
    """The formulas of the nodes of one document."""

    def __init__(self, reader: Reader, logic: Logic, strict_formats: bool):
        self.reader, self.logic, self.strict = reader, logic, strict_formats
        self.formulas: dict[tuple[Node, str], Formula | None] = {}

    def formula(self, node: Node, kind: str) -> Formula:
        """Return the formula of `node` over the atoms of `kind`.

        Raises:
            ConstraintError: a keyword is refused, or `$ref` returns to itself.
        """
        if node is self.reader.true:
            return TRUE
        if node is self.reader.false:
            return FALSE
        key = (node, kind)
        if key in self.formulas:
            known = self.formulas[key]
            if known is None:
                raise refused(
                    node.path, "$ref", "returns to itself", "let it pass a property"
                )
            return known
        self.formulas[key] = None
        formula = self._conjunction(node, kind)
        self.formulas[key] = formula
        return formula

    def _conjunction(self, node: Node, kind: str) -> Formula:
        words = node.keywords
        if not self._has_type(node, kind):
            return FALSE
        for word in _REFUSED["any"] + _REFUSED.get(kind, ()):
            if word in words:
                _, path = words[word]
                remedy = _REMEDIES.get(word, "use $ref")
                raise refused(path, word, "is not supported", remedy)
        parts = []
        members = False
        # Conditions come last, so that they do not set the order of names.
        for word in sorted(words, key=_CONDITIONS.__contains__):
            value = words[word]
            if word in ("properties", "patternProperties", "additionalProperties"):
                if kind == "object" and not members:
                    members = True
                    parts.append(self._members(node))
                continue
            parts.append(self._keyword(node, word, value, kind))
            if parts[-1] is FALSE:
                return FALSE
        return self.logic.all(parts)

    def _has_type(self, node: Node, kind: str) -> bool:
        types = node.keywords.get("type")
        if types is None:
            return True
        names = types if isinstance(types, list) else [types]
        known = set().union(*_TYPES.values())
        for name in names:
            if name not in known and name != "any":
                path = f"{node.path}/type"
                raise refused(path, "type", f"is {name!r}", "use JSON Schema's types")
        return "any" in names or bool(_TYPES[kind] & set(names))

    def _keyword(self, node: Node, word: str, value: Any, kind: str) -> Formula:
        logic = self.logic
        if word == "allOf":
            return logic.all(self.formula(n, kind) for n in value)
        if word == "anyOf":
            return logic.any(self.formula(n, kind) for n in value)
        if word == "oneOf":
            return logic.one(self.formula(n, kind) for n in value)
        if word == "not":
            return logic.no(self.formula(value, kind))
        if word == "$ref":
            return self.formula(self.reader.target(*value), kind)
        if word == "if":
            return self._condition(node, kind)
        if word == "const":
            return self._values([value], kind, node.path)
        if word == "enum":
            return self._values(value, kind, node.path)
        if kind == "string":
            return self._string(node, word, value)
        if kind == "number":
            return self._number(node, word, value)
        if kind == "array":
            return self._array(node, word, value)
        return self._object(word, value) if kind == "object" else TRUE

    def _condition(self, node: Node, kind: str) -> Formula:
        condition = self.formula(node.keywords["if"], kind)
        branches = []
        for word, negate in (("then", True), ("else", False)):
            if word in node.keywords:
                test = self.logic.no(condition) if negate else condition
                branch = self.formula(node.keywords[word], kind)
                branches.append(self.logic.any([test, branch]))
        return self.logic.all(branches)

    def _values(self, values: list, kind: str, path: str) -> Formula:
        values = [value for value in values if kind_of(value) == kind]
        if not values:
            return FALSE
        if kind == "string":
            return self.logic.atom(("words", frozenset(values)))
        if kind == "number":
            return self.logic.atom(("numbers", frozenset(map(decimal, values))))
        if kind == "array":
            return self.logic.any(self._array_value(value, path) for value in values)
        if kind == "object":
            return self.logic.any(self._object_value(value, path) for value in values)
        return TRUE

    def _array_value(self, value: list, path: str) -> Formula:
        items = tuple(self.reader.literal(item, path) for item in value)
        atoms = [("items", items, self.reader.false), ("size", len(items), None)]
        return self.logic.all(map(self.logic.atom, atoms))

    def _object_value(self, value: dict, path: str) -> Formula:
        declared = [(name, self.reader.literal(v, path)) for name, v in value.items()]
        members = Members(tuple(declared), (), self.reader.false)
        parts = [self.logic.atom(("members", members))]
        if value:
            parts.append(self.logic.atom(("required", tuple(value))))
        return self.logic.all(parts)

    def _string(self, node: Node, word: str, value: Any) -> Formula:
        if word == "pattern":
            return self.pattern(value, f"{node.path}/pattern", "pattern")
        if word == "minLength":
            return self.logic.atom(("length", int(value), None)) if value else TRUE
        if word == "maxLength":
            return self.logic.atom(("length", 0, int(value)))
        if word == "format":
            path = f"{node.path}/format"
            if value in schema_formats.FORMATS:
                return self.pattern(schema_formats.FORMATS[value], path, "format")
            if self.strict:
                known = ", ".join(schema_formats.FORMATS)
                raise refused(path, word, f"is {value!r}", f"use one of {known}")
        return TRUE

    def pattern(self, text: str, path: str, word: str) -> Formula:
        """Return the formula of a string that `text` matches somewhere."""
        try:
            parts = ecma_syntax.conjunction(text)
        except ecma_syntax.SyntaxFault as fault:
            raise refused(path, word, f"{text!r} {fault}", "rewrite it") from None
        atoms = [(holds, self.logic.atom(("pattern", tree))) for holds, tree in parts]
        return self.logic.all(a if holds else self.logic.no(a) for holds, a in atoms)

    def _number(self, node: Node, word: str, value: Any) -> Formula:
        words = node.keywords
        if word == "type":
            names = value if isinstance(value, list) else [value]
            if "number" in names or "any" in names:
                return TRUE
            return self.logic.atom(("integer", self.reader.draft <= 4))
        if word in ("minimum", "maximum"):
            signs = {0, 1} if word == "minimum" else {0, -1}
            if words.get(f"exclusiveM{word[1:]}") is True:
                signs.remove(0)
            return self._compare(value, signs)
        if word in ("exclusiveMinimum", "exclusiveMaximum"):
            if isinstance(value, bool):
                return TRUE
            return self._compare(value, {1} if word == "exclusiveMinimum" else {-1})
        if word == "multipleOf":
            exact = decimal(value).normalize()
            places = max(0, -int(exact.as_tuple().exponent))
            return self.logic.atom(("multiple", int(exact.scaleb(places)), places))
        return TRUE

    def _compare(self, bound: int | float, signs: set[int]) -> Formula:
        return self.logic.atom(("compare", decimal(bound), frozenset(signs)))

    def _array(self, node: Node, word: str, value: Any) -> Formula:
        words, reader = node.keywords, self.reader
        if word == "minItems":
            return self.logic.atom(("size", int(value), None)) if value else TRUE
        if word == "maxItems":
            return self.logic.atom(("size", 0, int(value)))
        if word == "prefixItems":
            first, rest = tuple(value), words.get("items", reader.true)
            if isinstance(rest, list):
                rest = words.get("additionalItems", reader.true)
            return self.logic.atom(("items", first, rest))
        if word == "items" and "prefixItems" not in words:
            if isinstance(value, list):
                rest = words.get("additionalItems", reader.true)
                return self.logic.atom(("items", tuple(value), rest))
            return (
                self.logic.atom(("items", (), value))
                if value is not reader.true
                else TRUE
            )
        return TRUE

    def _members(self, node: Node) -> Formula:
        words = node.keywords
        rest = words.get("additionalProperties", self.reader.true)
        patterns = []
        for text, inner in words.get("patternProperties", {}).items():
            path = f"{node.path}/patternProperties"
            patterns.append((self.pattern(text, path, "patternProperties"), inner))
        declared = tuple(words.get("properties", {}).items())
        if not declared and not patterns and rest is self.reader.true:
            return TRUE
        return self.logic.atom(("members", Members(declared, tuple(patterns), rest)))

    def _object(self, word: str, value: Any) -> Formula:
        logic = self.logic
        if word == "required":
            return self._required(value)
        if word == "minProperties":
            return logic.atom(("count", Count(int(value), None))) if value else TRUE
        if word == "maxProperties":
            return logic.atom(("count", Count(0, int(value))))
        if word == "propertyNames":
            names = (self.formula(value, "string"), self.reader.true)
            members = Members((), (names,), self.reader.false)
            return logic.atom(("members", members))
        if word not in ("dependencies", "dependentRequired", "dependentSchemas"):
            return TRUE
        parts = []
        for name, then in value.items():
            if isinstance(then, tuple):
                needed = self._required(then)
            else:
                needed = self.formula(then, "object")
            parts.append(logic.any([logic.no(self._required((name,))), needed]))
        return logic.all(parts)

    def _required(self, names: tuple[str, ...]) -> Formula:
        return self.logic.atom(("required", names)) if names else TRUE
