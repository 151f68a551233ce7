"""Grammars of canvases: on the device where all are regular, else on the host.

What regular ones have on the device (`completions.py`) are tables of each, side by
side. A row differs from another by the number of its grammar.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from decoding import base
from decoding.automata import (
    canvas_matcher,
    compiled,
    completions,
    stackless,
    token_dfa,
)
from decoding.automata.canvas_matcher import CanvasMatcher
from decoding.automata.compiled import Grammar
from decoding.denoising.holes import Holes
from models.errors import ConstraintError, MethodError

Sources = tuple[Grammar | None, ...]


def is_regular(sources: Sources) -> bool:
    """Return whether the device holds all of some grammars; None: any text."""
    return all(source is None or source.kind == "regex" for source in sources)


def holes(compiler: compiled.Compiler, sources: Sources, index: int) -> Holes:
    """Return what canvases are held to. Nothing is built before `init`.

    Args:
        compiler: of the vocabulary.
        sources: the grammars of all prompts of a call; None: any text.
        index: which of them this prompt has.
    """
    if is_regular(sources):
        return _on_device(compiler, sources, index)
    return _on_host(compiler, sources, index)


def _on_device(compiler: compiled.Compiler, sources: Sources, index: int) -> Holes:
    distinct = tuple(dict.fromkeys(sources))
    number = distinct.index(sources[index])

    def init(tokens: Array, length: Array) -> base.State:
        return base.State(jnp.int32(number), _tables(compiler, distinct))

    def of_row(state: base.State) -> completions.Tables:
        at = 0 if len(state.shared.start) == 1 else state.row
        return jax.tree.map(lambda x: x[at], state.shared)

    def possible(state: base.State, canvas: Array) -> Array:
        return completions.completable(of_row(state), canvas)

    def allowed(state: base.State, canvas: Array) -> Array:
        return completions.fillings(of_row(state), canvas)

    return Holes(init, possible, allowed)


@functools.lru_cache(16)
def _tables(compiler: compiled.Compiler, sources: Sources) -> completions.Tables:
    """Return the tables of regular grammars, with one more axis in front."""
    automata = [_automaton(compiler, source) for source in sources]
    states, classes = np.array([a.next.shape for a in automata]).max(0).tolist()
    with jax.ensure_compile_time_eval():
        every = [completions.tables(a, (states, classes)) for a in automata]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *every)


def _automaton(
    compiler: compiled.Compiler, source: Grammar | None
) -> token_dfa.TokenDFA:
    size, eos = compiler.vocabulary.size, compiler.vocabulary.eos
    if source is None:
        anything = np.zeros((1, 1), np.int32)
        return token_dfa.TokenDFA(
            anything, np.zeros(size, np.int32), np.ones(1, bool), 0
        )
    _check(source)
    dfa = stackless.automaton(compiler.lifted(source).machine)
    lifted = token_dfa.lift(dfa, compiler.vocabulary.tokens, size)
    return completions.with_end(lifted, eos)


def _on_host(compiler: compiled.Compiler, sources: Sources, index: int) -> Holes:
    source = sources[index]

    def init(tokens: Array, length: Array) -> base.State:
        if jax.process_count() > 1:
            raise MethodError(
                f"{source} asks the host of one process, and there are "
                f"{jax.process_count()}: use a regex, or one process"
            )
        return base.State(jnp.int32(canvas_matcher.NUMBERS.of(matcher())))

    @functools.cache  # a number holds as long as its matcher
    def matcher() -> CanvasMatcher | None:
        return None if source is None else _matcher(compiler, source)

    def possible(state: base.State, canvas: Array) -> Array:
        return canvas_matcher.possible(state.row, canvas)

    def first(
        state: base.State, canvas: Array, position: Array, tokens: Array
    ) -> Array:
        return canvas_matcher.first(state.row, canvas, position, tokens)

    return Holes(init, possible, first=first)


@functools.lru_cache(64)
def _matcher(compiler: compiled.Compiler, source: Grammar) -> CanvasMatcher:
    _check(source)
    about = compiler.vocabulary.tokens, compiler.vocabulary.eos
    return CanvasMatcher(compiler.lifted(source).machine, *about)


def _check(source: Grammar) -> None:
    if source.canonical:
        raise ConstraintError(
            f"{source} with canonical=True, which spells a text from left to right, "
            "and a diffusion model: leave canonical out"
        )
