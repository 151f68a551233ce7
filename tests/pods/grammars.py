"""Texts under grammars on meshes of 8 virtual devices; run by test_meshes.py.

Prints one JSON object: {"texts": {mesh: texts}, "sent": {mesh: gathers of the round
with the grammars and without}}. The mesh "one" is a single device; "fault gathered" is
a mask for which every device gathers the logits.
"""

import dataclasses
import json
from typing import Any

import jax

import decoding
import models
from decoding import Method, Spec, compose, vocab
from decoding.loops import engines
from kernels import hlo
from models import io, transformer
from models.distributed import sharding
from tests.pods import meshes

NEW = 24
CONFIG = dataclasses.replace(meshes.CONFIG, eos=(0,))
SOURCES = [
    {"json_schema": {"type": "array", "items": {"enum": ["ab", 1]}, "minItems": 2}},
    {"gbnf": 'root ::= "(" root ")" | "[" root? "]"'},
    {"regex": "[a-z ]{4,12}[0-9]+"},
    None,
]
MESHES = {"1x1x8": (1, 1, 8), "2x2x2": (2, 2, 2)}


class Tokens:
    """Bytes, pairs of letters, and many that no grammar reads; token 0 is the end."""

    def token_bytes(self) -> list[bytes]:
        letters = [bytes([97 + i // 26, 97 + i % 26]) for i in range(26 * 26)]
        every = [b"", *(bytes([i]) for i in range(256)), *letters]
        rest = CONFIG.vocab_size - len(every)
        return every + [b"\xff" + str(i).encode() for i in range(rest)]

    def decode(self, ids: list[int]) -> str:
        spelled = self.token_bytes()
        return b"".join(spelled[i] for i in ids).decode(errors="replace")


TOKENIZER = Tokens()


def texts(lm: models.Loaded) -> list[list[int]]:
    out = decoding.generate(
        dataclasses.replace(lm, tokenizer=TOKENIZER),
        meshes.prompts(),
        max_new_tokens=NEW,
        temperature=0.8,
        constraint=SOURCES * 2,
        finish=True,
        width="paper",
    )
    assert all(out.accepted or [])
    return out.tokens


def sent(lm: models.Loaded, is_held: bool) -> int:
    """Count the gathers of rounds under a grammar, or under banned tokens."""
    grammar = Spec("constraints/grammar", grammars=(SOURCES[1],))
    banned = Spec("transforms/ban_tokens", bans=(3, 4))
    method = Method(transforms=(grammar if is_held else banned,))
    there = dataclasses.replace(lm, tokenizer=TOKENIZER)
    with engines.apart():
        parts = compose.compose(method, there, 0.8)
        engine, params = engines.engine(parts), compose.params(there)
        rows = meshes.prompts()
        limits = [len(row) + NEW for row in rows]
        keys = engines.request_keys(0, len(rows), 1)
        state = engine.start(params, parts, rows, limits, keys, 128)
        engine.advance(params, state)
        every = hlo.collectives(engine.text("advance"))
    return sum(x.kind == "all-gather" for x in every)


def gathered(logits: Any, allowed: Any) -> Any:
    """Planted: the vocabulary is brought together before it is masked."""
    logits = sharding.constrain(logits, "-")
    return restricted(logits, allowed)


restricted = vocab.restricted


def main() -> dict[str, dict[str, Any]]:
    lm = transformer.transformer(CONFIG)
    params = jax.jit(lm.init)(jax.random.key(0))
    whole = models.Loaded(lm, params)
    found: dict[str, dict[str, Any]] = {"texts": {"one": texts(whole)}, "sent": {}}
    for name, shape in MESHES.items():
        there = io.placed(whole, meshes.plan_of(shape))
        found["texts"][name] = texts(there)
        found["sent"][name] = [sent(there, True), sent(there, False)]
    vocab.restricted = gathered
    there = io.placed(whole, meshes.plan_of((1, 1, 8)))
    found["sent"]["fault gathered"] = [sent(there, True), sent(there, False)]
    return found


if __name__ == "__main__":
    sharding.ORDERED = ("cpu",)  # weights lie in memory as a TPU's do
    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_disable_most_optimizations", True)  # compiling is the cost
    print(json.dumps(main()))
