"""Grammars through `generate`: rows with others, drafts, limits, refusals."""

import contextlib
import decimal
import json
import random

import jax
import jax.numpy as jnp
import jsonschema
import pytest

import decoding
import models
from decoding import Method, Spec
from decoding.automata import arena, compiled
from decoding.conformance import kit
from decoding.constraints import grammar
from decoding.loops import engines
from experiments.measurement import workbench
from models.errors import ConstraintError, PromptError
from models.synthetic import constant
from tests.decoding.automata import random_schemas

# Over the toy's letters a to g.
NESTED = {"gbnf": 'root ::= "a" root? "b" | "c"'}
GRAMMARS = [
    NESTED,
    {"regex": "(ab|c)*d"},
    {"gbnf": 'root ::= item ("e" item)*\nitem ::= [ab]+ | "c" root "d"'},
    {"lark": 'start: "a" (B | start)* "f"\nB: /[bc]+/'},
    {"ebnf": 'root ::= ("a" | "b" | "cd")* "g"'},
    None,
    {"regex": "[a-d]{3}", "after": "ef"},
    {"gbnf": 'root ::= "a" x "a" | "b" x "b"\nx ::= [cd]*'},
]
# A value that only ends with two more open: a row of this needs a stack of two.
TWO = """
root ::= "a" x "a" | "b" x "b"
x ::= "c" y "c" | "d" y "d"
y ::= "a" x? "f"
"""
NEEDS_TWO = compiled.parse({"gbnf": TWO})
PROMPTS = [[1], [2, 3, 4], [5], [1, 2, 3, 1, 2], [0], [6, 6], [3], [4, 2]]
TREE = Method(Spec("drafters/model"), topology=kit.spec("topologies/specinfer"))


def call(prompts, constraint, **fields):
    fields = {"temperature": 0.8, "seed": list(range(len(prompts))), **fields}
    fields = {"max_new_tokens": 24, "width": "paper", **fields}
    return decoding.generate(
        kit.model(0, -2.0), prompts, constraint=constraint, **fields
    )


@pytest.fixture(scope="module")
def together():
    return call(PROMPTS, GRAMMARS, finish=True)


def test_every_text_is_a_whole_one(together):
    assert together.accepted == [True] * len(PROMPTS)
    free = call(PROMPTS, None)
    assert free.accepted is None
    # Planted: texts without the constraint are no texts of the grammars.
    verdicts = call(PROMPTS, [None] * len(PROMPTS)).accepted
    assert verdicts == [True] * len(PROMPTS)
    assert free.tokens[5] == together.tokens[5]
    assert all(
        a != b for i, (a, b) in enumerate(zip(free.tokens, together.tokens)) if i != 5
    )


def exactly(text: str):
    """Read JSON with exact numbers; whole ones are ints, as a judge asks for.

    Exponents end at 400 either way: beyond them no number is judged otherwise.
    """

    def number(digits: str):
        mantissa, _, exponent = digits.lower().partition("e")
        power = max(-400, min(int(exponent or 0), 400))
        value = decimal.Decimal(f"{mantissa}e{power}")
        return int(value) if value == value.to_integral_value() else value

    return json.loads(text, parse_float=number)


@pytest.mark.long
def test_random_texts_are_instances():
    """10,048 texts of a uniform model over `tiny`'s tokens, judged from outside.

    The judge reads numbers exactly: of 650...816.1 as a float 1 is a divisor. Planted:
    texts of other schemas of the list are not all instances.
    """
    tiny, rng = models.load("tiny"), random.Random(0)
    table = jnp.zeros_like(constant.params(tiny.model)["table"])
    uniform = workbench.Model(
        constant.language_model(tiny.model), {"table": table}, tiny.tokenizer
    )
    schemas: list = []
    while len(schemas) < 64:
        schema = random_schemas.schema(rng)
        with contextlib.suppress(ConstraintError):
            compiled.machine(compiled.parse({"json_schema": schema}))
            schemas.append(schema)
    judges = [
        jsonschema.Draft202012Validator(exactly(json.dumps(schema)))
        for schema in schemas
    ]
    right = others = 0
    for seed in range(157):
        out = decoding.generate(
            *(uniform, [[1]] * len(schemas)),
            constraint=[{"json_schema": schema} for schema in schemas],
            temperature=1.0,
            max_new_tokens=64,
            seed=[len(schemas) * seed + i for i in range(len(schemas))],
            finish=True,
            width="paper",
        )
        with decimal.localcontext(prec=2000):
            values = [exactly(text) for text in out.texts]
            for judge, value, text in zip(judges, values, out.texts):
                assert judge.is_valid(value), (judge.schema, text)
                right += 1
            others += sum(judge.is_valid(v) for judge, v in zip(judges, values[1:]))
    assert right == len(schemas) * 157
    assert others < 0.9 * right


def test_rows_equal_calls_alone(together):
    for i, (prompt, source) in enumerate(zip(PROMPTS, GRAMMARS)):
        if source is not None:
            alone = call([prompt], source, seed=[i], finish=True)
            assert alone.tokens[0] == together.tokens[i]
            assert alone.logprobs[0] == together.logprobs[i]


def test_drafts_keep_the_text(together):
    out = call(PROMPTS, GRAMMARS, finish=True, method=TREE, drafts={"draft": kit.DRAFT})
    assert out.guarantee == "LAW"
    assert out.tokens == together.tokens
    assert out.stats.tokens_per_call > 1


def test_other_grammars_compile_nothing(together):
    others = [*GRAMMARS[:5][::-1], {"regex": "[abc]{2,5}"}, *GRAMMARS[6:]]
    assert call(PROMPTS, others, finish=True).stats.compile_seconds == 0


def test_fault_tables_of_every_row(monkeypatch):
    """All rows of a call share one making of the tables.

    Planted: each row makes its own.
    """
    made, tables = [], arena._tables
    monkeypatch.setattr(arena, "_tables", lambda *a: made.append(1) or tables(*a))
    grammar._placed.cache_clear()
    call(PROMPTS, GRAMMARS, finish=True)
    assert len(made) == 1
    made.clear()
    monkeypatch.setattr(grammar, "_placed", grammar._placed.__wrapped__)
    call(PROMPTS, GRAMMARS, finish=True)
    assert len(made) > 1


def test_nothing_runs_on_the_host():
    method = Method(transforms=(kit.spec("constraints/grammar"),))
    run = kit.Run(method, 0.8)
    round_ = lambda params, state: engines.decode.round_(
        run.parts.program, params, state
    )
    text = jax.jit(round_).lower(run.params, run.start()).as_text()
    assert "callback" not in text


@pytest.mark.parametrize("limit", [2, 4, 5, 9])
def test_texts_end_within_their_limit(limit):
    out = call(PROMPTS, NESTED, finish=True, max_new_tokens=limit)
    assert out.accepted == [True] * len(PROMPTS)
    assert set(out.finish_reason) == {"eos"}


def test_fault_no_limit():
    """Planted: `finish` is left out."""
    out = call(PROMPTS, NESTED, max_new_tokens=5)
    assert not all(out.accepted)
    assert set(out.finish_reason) == {"eos", "length"}


def test_truncation_follows_the_grammar():
    """Of tokens that the grammar allows the best one is kept, never none.

    Planted: the truncation first, which then keeps one that is forbidden.
    """
    out = call(PROMPTS, NESTED, top_k=1, finish=True)
    greedy = call(PROMPTS, NESTED, temperature=0.0, finish=True)
    assert out.tokens == greedy.tokens
    spec = Spec("constraints/grammar", grammars=(compiled.parse(NESTED),))
    before = call(PROMPTS, None, transforms=[Spec("transforms/top_k", k=1), spec])
    assert before.tokens != greedy.tokens


REFUSED = [
    ({"regex": "a", "gbnf": 'root ::= "a"'}, "sources .'regex', 'gbnf'.: give exactly"),
    ({"jsonschema": {}}, "'jsonschema' .did you mean 'json_schema'"),
    ({"gbnf": 'root ::= "h"'}, "no token for the bytes 0x68 that"),
    ({"regex": "h"}, "matches no sequence of this tokenizer's tokens"),
    ({"regex": "a", "whitespace": "none"}, "use one of .'flexible', 'compact'"),
    ({"gbnf": 'root ::= "a" root'}, "no text"),
    ({"regex": 3}, "regex is int: give its text"),
    ({"json_schema": {1, 2}}, "json_schema is no JSON"),
    ("a+", "give a mapping such as"),
]


@pytest.mark.parametrize(("constraint", "words"), REFUSED, ids=lambda x: str(x)[:30])
def test_refused_before_compilation(constraint, words):
    with pytest.raises(ConstraintError, match=words):
        call([[1]], constraint)


def test_refused_lists_and_limits():
    with pytest.raises(PromptError, match="2 entries for 1 prompts"):
        call([[1]], [NESTED, NESTED])
    with pytest.raises(ConstraintError, match=r"up to 2 tokens .* finish=1: raise max"):
        call([[1]], NESTED, finish=True, max_new_tokens=1)
    for depth in (0, 1):
        spec = Spec("constraints/grammar", grammars=(NEEDS_TWO,), depth=depth)
        with pytest.raises(ConstraintError, match=f"depth={depth}: "):
            call([[1]], None, transforms=[spec])


def test_a_schema_in_a_spec_is_a_text():
    schema = {"enum": ["b", "a"]}
    spec = Spec("constraints/grammar", grammars=({"json_schema": schema},))
    with pytest.raises(ConstraintError, match=r"order of .* json.dumps.schema"):
        call([[1]], None, transforms=[spec])


def test_schema_as_text_and_as_mapping():
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    sources = (schema, json.dumps(schema))
    read = [compiled.parse({"json_schema": source}) for source in sources]
    assert read[0] == read[1]
    assert read[0].source.index('"b"') < read[0].source.index('"a"')
