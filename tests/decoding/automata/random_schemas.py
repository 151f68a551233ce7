"""Random schemas, values and their texts, drawn by a `random.Random`."""

import json

NAMES = ["a", "b", "ab", "é", ""]
SCALARS = [
    None,
    True,
    False,
    0,
    1,
    -2,
    3,
    1.5,
    -0.25,
    1.0,
    "",
    "a",
    "é",
    "ab\n",
    "😀😀😀",
]


def value(rng, depth=2):
    if depth == 0 or rng.random() < 0.5:
        return rng.choice(SCALARS)
    values = [value(rng, depth - 1) for _ in range(rng.randrange(4))]
    if rng.random() < 0.4:
        return values
    return dict(zip(rng.sample(NAMES, len(values)), values))


def schema(rng, depth=3):
    if depth == 0 or rng.random() < 0.1:
        types = ["object", "array", "string", "integer", "number", "boolean", "null"]
        return rng.choice([True, {}, *({"type": name} for name in types)])

    def inner():
        return schema(rng, depth - 1)

    def several():
        return [inner() for _ in range(rng.randrange(1, 4))]

    choices = {
        "type": lambda: rng.choice(["object", "object", "array", "string", "integer"]),
        "properties": lambda: {name: inner() for name in rng.sample(NAMES, 2)},
        "required": lambda: rng.sample(NAMES, 1),
        "additionalProperties": lambda: rng.choice([False, inner()]),
        "minProperties": lambda: rng.randrange(3),
        "maxProperties": lambda: rng.randrange(3),
        "items": inner,
        "minItems": lambda: rng.randrange(3),
        "enum": lambda: [value(rng) for _ in range(3)],
        "minimum": lambda: rng.choice([0, 1.5, -2]),
        "multipleOf": lambda: rng.choice([0.5, 1, 3]),
        "minLength": lambda: rng.randrange(3),
        "maxLength": lambda: rng.randrange(3),
        "allOf": several,
        "anyOf": several,
        "oneOf": several,
        "not": inner,
        "if": inner,
        "then": inner,
        "else": inner,
    }
    names = rng.sample(list(choices), rng.randrange(1, 5))
    return {name: choices[name]() for name in names}


def text(rng, of) -> str:
    """Return a JSON text of `of`, perhaps with another name twice or escaped."""
    if isinstance(of, list):
        return "[" + ",".join(text(rng, item) for item in of) + "]"
    if not isinstance(of, dict):
        return json.dumps(of, ensure_ascii=False)
    members = list(of.items())
    if members and rng.random() < 0.2:
        members.insert(
            rng.randrange(len(members)), (members[-1][0], rng.choice(SCALARS))
        )
    texts = []
    for name, inner in members:
        if rng.random() < 0.1:
            key = '"' + "".join(f"\\u{ord(char):04x}" for char in name) + '"'
        else:
            key = json.dumps(name, ensure_ascii=False)
        texts.append(f"{key}: {text(rng, inner)}")
    return "{" + ", ".join(texts) + "}"
