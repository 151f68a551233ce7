"""Every drafter under schemas, grammars and regexes writes plain decoding's text.

Eight prompts hold seven constraints in one program: greedy, at temperature 0.8, and at
0.8 with top-p 0.9. Then single prompts, a batch of one, do so again.
"""

import types
from dataclasses import replace

import pytest

from decoding import Method
from decoding.conformance import kit
from decoding.loops import decode
from tests.conformance import parameters
from tests.conformance.test_drafters import TREE

# A sentence ends with a byte that TOKENS have.
CASES = kit.cases() | kit.cases_of("drafters/foreal", terminators="2")
TOKENS = [b"1", b"2", b'"', b"12", b'1"', b'"2', b"21"]
PAIRS = 'root ::= "1" root "2" | "2"'
CONSTRAINTS = (
    {"json_schema": {"type": "string", "pattern": "^[12]*$"}},
    {"gbnf": PAIRS},
    {"regex": "(12|212|1)*"},
    {"json_schema": {"enum": ["2112", "21212121", "121221", "2"]}},
    {"gbnf": 'root ::= "\\"" (root | "2")+ "1"'},
    {"regex": '("[12]{2,5}")*'},
    {"json_schema": {"type": "string", "pattern": "^(112|2)+$"}},
    None,
)
HEATS = (0.0, 0.8, 0.8, 0.8, 0.0, 0.8, 0.0, 0.8)
TOP_P = (None, None, 0.9, 0.9, None, None, None, 0.9)
PROMPTS = (*kit.PROMPTS, *(p[::-1] for p in kit.PROMPTS))
SINGLES = (0, 1, 3)  # greedy, at 0.8, at 0.8 with top-p


class Pieces:
    """A tokenizer of TOKENS, and EOS."""

    def token_bytes(self):
        return [*TOKENS, b""]

    def decode(self, ids):
        return b"".join(self.token_bytes()[i] for i in ids).decode()


def target():
    """The toy, whose tokens are bytes of TOKENS."""
    fields = vars(kit.model(0, -1.0)) | {"tokenizer": Pieces()}
    return types.SimpleNamespace(**fields)


LM = target()


def given(method: Method, rows) -> tuple[tuple, dict]:
    """The arguments of one call with the prompts of these numbers."""
    fields = {
        "lm": LM,
        "prompts": [PROMPTS[i] for i in rows],
        "constraint": [CONSTRAINTS[i] for i in rows],
        "top_p": [TOP_P[i] for i in rows],
        "max_new_tokens": 16,
    }
    return (replace(method, transforms=()), [HEATS[i] for i in rows]), fields


def texts(method: Method, rows) -> list[list[int]]:
    method_and_heats, fields = given(method, rows)
    return kit.generate(*method_and_heats, **fields).tokens


def plain(method: Method, rows) -> list[list[int]]:
    method_and_heats, fields = given(method, rows)
    return kit.plain(*method_and_heats, **fields)


@pytest.mark.long
def test_planted_constraint_is_not_carried_down_a_path(monkeypatch):
    """At every node the tokens are allowed that are so at the root."""

    def root_states(transform, state, nodes, logits, aux):
        return sound(transform._replace(advance=None), state, nodes, logits, aux)

    every = range(len(PROMPTS))
    sound = decode.tree.node_states
    wanted = plain(TREE, every)  # its program is kept, so not under the fault
    assert texts(TREE, every) == wanted
    monkeypatch.setattr(decode.tree, "node_states", root_states)
    # No case's method: its program is kept too, with the fault.
    chain = kit.spec("drafters/token_recycling", choices=((0,), (0, 0), (0, 0, 0)))
    assert texts(Method(chain), every) != wanted


@pytest.mark.long
@pytest.mark.parametrize("method", parameters.each(CASES))
def test_text_is_plain(method):
    every = range(len(PROMPTS))
    assert texts(method, every) == plain(method, every)
    for row in SINGLES:
        assert texts(method, (row,)) == plain(method, (row,)), row
