"""Grammars: JSON schemas, GBNF, Lark, EBNF and regexes, another one for each prompt.

Geng et al., *JSONSchemaBench: A Rigorous Benchmark of Structured Outputs for Language
Models*, 2025, arXiv 2501.10868, for what users ask of it; Willard, Louf, *Efficient
Guided Generation for Large Language Models*, 2023, arXiv 2307.09702, for the automaton
over tokens. The stack, the packed masks and the common tables are this project's.

A grammar is a deterministic automaton over bytes with a stack (`automata/`), lifted to
tokens: a token is allowed if and only if some text after it completes a text of the
grammar. The end of sequence is allowed where the text is complete. All grammars of a
call lie in one set of tables, and a row differs from another by its first state alone,
so one compiled program serves all grammars whose tables have like sizes.

The law is the model's, restricted token by token and renormalised. It is not the
model's law conditioned on the grammar.

On a canvas the grammar decides whether all open positions can still be filled, a token
each: regexes on the device, all others on the host at each commit
(`automata/canvas_grammars`).

Deviations: a text that would need more calling states than `depth` is not written.
Cost a node: V/8 bytes of words, a scatter of the tokens that depend on the stack, and a
step a byte of its token. Nothing runs on the host, but for canvases.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from decoding import base, vocab
from decoding.automata import arena, canvas_grammars, compiled, machine
from decoding.automata.compiled import Grammar
from decoding.automata.lift import Lifted
from decoding.catalogue import Card
from models.errors import ConstraintError

CARD = Card(
    paper="JSONSchemaBench, arXiv 2501.10868",
    guarantee=base.LAW,
    family="grammar",
    data=("grammars", "index", "finish"),
    needs=("tokenizer", "eos", "vocab_size"),
    examples={
        "grammars": (
            Grammar("gbnf", 'root ::= ([abd-f] | "c" root "g")*'),
            Grammar("regex", "(a|b)*"),
        )
    },
    sources=("geng2025jsonschemabench", "willard2023efficient"),
)


def transform(
    grammars: Sequence[Any],
    tokenizer: Any,
    eos: tuple[int, ...],
    vocab_size: int,
    index: int = 0,
    depth: int = 32,
    finish: int = 0,
) -> base.LogitsTransform:
    """Restrict the text to a grammar's.

    If earlier transforms have forbidden every token that the grammar allows, the
    grammar wins: its tokens become equally likely. In a dead state, which only an
    unreachable tree node has, the logits are returned unchanged.

    Args:
        grammars: those of all prompts of a call (`compiled.parse`); None: any text.
        tokenizer: `tokenizer.token_bytes()` gives the bytes of every id.
        eos: ids of the end-of-sequence tokens.
        vocab_size: V.
        index: which of `grammars` this prompt has.
        depth: calling states that a text may have open at once.
        finish: tokens, the end of sequence among them, in which a text always ends; 0:
            it may be cut.

    Raises:
        ConstraintError: a grammar that does not compile, or that needs more than
            `depth` states or `finish` tokens.
    """
    if depth < 1:
        raise ConstraintError(f"depth={depth}: use at least 1")
    sources = tuple(_source(entry) for entry in grammars)
    compiler = compiled.compiler(tokenizer, tuple(eos), vocab_size)
    tables, starts = _placed(compiler, sources)
    grammar, start = sources[index], starts[index]
    if grammar is not None:
        _check(grammar, compiler.lifted(grammar), depth, finish)

    def init(tokens: Array, length: Array) -> base.State:
        row = machine.init(start, finish, depth, finish > 0)
        return base.State(row, tables)

    def apply(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        allowed = machine.allowed(state.shared, state.row)
        return vocab.restricted(logits, allowed)

    def advance(
        state: base.State, token: Array, logits: Array, aux: dict[str, Array]
    ) -> base.State:
        row = machine.advance(state.shared, state.row, token)
        return base.State(row, state.shared)

    def free(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        return logits

    def forced(state: base.State) -> tuple[Array, Array]:
        return machine.forced(state.shared, state.row)

    holes = canvas_grammars.holes(compiler, sources, index)
    return base.LogitsTransform(
        init, apply, advance, free=free, forced=forced, holes=holes
    )


def _source(entry: Any) -> Grammar | None:
    """Read a grammar; a `Spec` holds mappings as tuples of pairs."""
    if entry is None or isinstance(entry, Grammar | Mapping):
        return None if entry is None else compiled.parse(entry)
    fields = dict(entry)
    if not isinstance(fields.get("json_schema", ""), str):
        raise ConstraintError(
            "a Spec does not keep the order of a schema's keys: give its text, as in "
            "{'json_schema': json.dumps(schema)}"
        )
    return compiled.parse(fields)


@functools.lru_cache(2)  # each row of a call asks for them
def _placed(
    compiler: compiled.Compiler, sources: tuple[Grammar | None, ...]
) -> tuple[Any, list[int]]:
    """Return the tables of all grammars on the device, and where each begins."""
    distinct = dict.fromkeys(source for source in sources if source is not None)
    has_strings = any(source.kind == "json_schema" for source in distinct)
    strings = compiler.strings if has_strings else None
    held = arena.Arena(compiler.vocabulary, strings)
    first = {source: held.add(compiler.lifted(source)) for source in distinct}
    starts = [machine.FREE if s is None else first[s] for s in sources]
    with jax.ensure_compile_time_eval():
        return jax.tree.map(jnp.asarray, held.tables()), starts


def _check(grammar: Grammar, lifted: Lifted, depth: int, finish: int) -> None:
    start = lifted.machine.start
    need, cost = int(lifted.machine.need[start]), int(lifted.cost[start, 0]) + 1
    if need > depth:
        raise ConstraintError(
            f"{grammar} needs {need} calling states and depth={depth}: raise depth"
        )
    if finish and cost > finish:
        raise ConstraintError(
            f"{grammar} needs up to {cost} tokens to end and finish={finish}: raise "
            "max_new_tokens"
        )
