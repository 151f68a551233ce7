"""A planted fault for each role, in a part that is otherwise sound.

They show that the contracts can fail on the part at hand: one that no contract notices
would pass them for the wrong reason.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from decoding import base, catalogue
from decoding.catalogue import Spec
from decoding.denoising.canvas_policy import CanvasPolicy
from decoding.denoising.schedule import Scheduler
from decoding.hypotheses import procedure
from decoding.hypotheses.drafts import Lanes
from decoding.hypotheses.nodes import Select
from decoding.hypotheses.prefill import Prefill
from decoding.hypotheses.procedure import Procedure
from decoding.hypotheses.proposal import Proposal
from decoding.hypotheses.rank import Rank
from decoding.hypotheses.reward import Reward
from decoding.loops import engines
from decoding.real_valued.verifying import RealVerdict, RealVerifier


@contextlib.contextmanager
def planted(spec: Spec, fault: Callable[[Any], Any]) -> Iterator[None]:
    """Let the factory of `spec` build faulty parts for a while."""
    module = spec.module
    name = spec.card.kind or catalogue.FACTORIES[spec.folder]
    sound = getattr(module, name)

    @functools.wraps(sound)
    def faulty(*positional: Any, **arguments: Any) -> Any:
        return fault(sound(*positional, **arguments))

    setattr(module, name, faulty)
    try:
        with engines.apart():
            yield
    finally:
        setattr(module, name, sound)


def forbids_everything(part: base.LogitsTransform) -> base.LogitsTransform:
    """forbids every token"""

    def apply(state, logits, aux):
        return jnp.full_like(part.apply(state, logits, aux), -jnp.inf)

    return part._replace(apply=apply)


def keeps_a_slot_too_many(part: base.Drafter) -> base.Drafter:
    """leaves the target's cache a token too long"""

    def draft(keys, ctx, state):
        nodes, state, cache = part.draft(keys, ctx, state)
        return nodes, state, cache.replace(length=cache.length + 1)

    return part._replace(draft=draft)


def takes_the_likeliest(part: base.Verifier) -> base.Verifier:
    """emits the target's likeliest token instead of a draw"""

    def verify(key, state, nodes, target):
        verdict = part.verify(key, state, nodes, target)
        at = jnp.maximum(verdict.count - 1, 0)
        path = verdict.path
        last = jnp.where(verdict.count > 0, path[at], 0) if path.shape[0] else 0
        token = jnp.argmax(target.logits[last]).astype(jnp.int32)
        return replace(verdict, token=token)

    return part._replace(verify=verify)


def swaps_parents(part: base.Topology) -> base.Topology:
    """gives its first node a later one as parent"""

    def expand(keys, state, nodes, logits, noise, level):
        nodes, state = part.expand(keys, state, nodes, logits, noise, level)
        parents = nodes.parents.at[:, 1].set(nodes.tokens.shape[1] - 1)
        return nodes.replace(parents=parents), state

    return part._replace(expand=expand)


def counts_a_token_too_many(part: base.CachePolicy) -> base.CachePolicy:
    """counts a token too many in every round"""

    def retain(state, cache, outcome):
        cache, state = part.retain(state, cache, outcome)
        more = 0 if outcome.is_prompt else 1
        return cache.replace(length=cache.length + more), state

    return part._replace(retain=retain)


def turns_wide_blocks(part: base.ExitPolicy) -> base.ExitPolicy:
    """changes the states of blocks of several nodes, and is declared path_pure"""

    def wrap(model):
        inner = part.wrap(model)

        def layers(weights, cache, x, block, lo, hi, taps=()):
            x, cache, hidden = inner.layers(weights, cache, x, block, lo, hi, taps)
            wide = x.shape[1] > 1
            return jax.tree.map(lambda leaf: -leaf if wide else leaf, x), cache, hidden

        return inner._replace(layers=layers)

    return part._replace(wrap=wrap, path_pure=True)


def puts_the_worst_first(part: Rank) -> Rank:
    """lists its texts backwards"""
    return part._replace(order=lambda found: part.order(found)[::-1])


def ends_with_its_best(part: Procedure) -> Procedure:
    """returns its best text last"""

    def run(generate, prompts):
        found = part.run(generate, prompts)
        backwards = lambda rows: None if rows is None else [row[::-1] for row in rows]
        names = (*procedure.OF_TEXTS, "scores")
        rows: dict[str, Any] = {n: backwards(getattr(found, n)) for n in names}
        return replace(found, **rows)

    return part._replace(run=run)


def counts_every_draw_once(part: Proposal) -> Proposal:
    """gives every token the weight 1"""

    def propose(key, paths, logits, noise):
        token, weight = part.propose(key, paths, logits, noise)
        return token, jnp.where(weight > -jnp.inf, 0.0, weight)

    return part._replace(propose=propose)


def reads_its_surroundings(part: Reward) -> Reward:
    """values a text by what stands behind it, or beside it"""
    ask, score, node = part.ask, part.score, part.node
    if ask is not None:
        return part._replace(ask=lambda found: [x + len(found) for x in ask(found)])
    if score is not None:
        past = lambda tokens: tokens[-1].astype(jnp.float32)
        return part._replace(score=lambda s, t, *ends: score(s, t, *ends) + past(t))
    assert node is not None
    last = lambda state, values, *text: values[-1]
    return part._replace(reduce=last)


def loses_an_end(part: Select) -> Select:
    """leaves the last token of its texts out"""

    def select(key, state, view):
        chosen, state = part.select(key, state, view)
        pool, up = chosen.pool, view.nodes.parents
        before = jnp.where(pool.last >= 0, pool.node, up[jnp.maximum(pool.node, 0)])
        node = jnp.where(pool.node >= 0, jnp.maximum(before, 0), -1)
        short = replace(pool, node=node, last=jnp.full_like(pool.last, -1))
        done = chosen.done
        shown = jax.tree.map(lambda a, b: jnp.where(done, a, b), short, pool)
        return chosen._replace(pool=shown), state

    return part._replace(select=select)


def reads_its_neighbours(part: Prefill) -> Prefill:
    """adds the keys of all prompts to those of each"""

    def read(*arguments):
        cache, state = part.read(*arguments)
        spread = lambda layer: replace(layer, k=layer.k + layer.k.sum(0))
        return replace(cache, layers=tuple(map(spread, cache.layers))), state

    return part._replace(read=read)


def drafts_the_worst(part: Lanes) -> Lanes:
    """drafts the worst tokens"""

    def expand(sums, logprobs, most):
        return part.expand(sums, -logprobs, most)

    return part._replace(expand=expand)


def cuts_canvases(part: Scheduler) -> Scheduler:
    """ends every canvas a token early"""
    return part._replace(stop=lambda state, canvas, proposal: canvas.limit - 1)


def runs_what_is_read(part: CanvasPolicy) -> CanvasPolicy:
    """runs no position but those whose laws are read"""
    return part._replace(run=lambda canvas, wanted: wanted)


def draws_from_the_target(part: RealVerifier) -> RealVerifier:
    """draws from the target's law, not from the residual, behind a rejected draft"""

    def verify(key: Array, drafts: Array, q: Any, p: Any) -> RealVerdict:
        verdict = part.verify(key, drafts, q, p)
        here = jax.tree.map(lambda x: x[verdict.count], p)
        noise = jax.random.normal(jax.random.fold_in(key, 99), here.mean.shape)
        again = here.mean + here.deviation * noise
        return RealVerdict(verdict.count, again, verdict.tries)

    return part._replace(verify=verify)


FAULTS: dict[str, Callable[[Any], Any]] = {  # by the folder, or by `Card.kind`
    "transforms": forbids_everything,
    "drafters": keeps_a_slot_too_many,
    "verifiers": takes_the_likeliest,
    "real_verifier": draws_from_the_target,
    "topologies": swaps_parents,
    "caches": counts_a_token_too_many,
    "exits": turns_wide_blocks,
    "search": loses_an_end,
    "rank": puts_the_worst_first,
    "prefill": reads_its_neighbours,
    "lanes": drafts_the_worst,
    "estimator": counts_every_draw_once,
    "procedure": ends_with_its_best,
    "rewards": reads_its_surroundings,
    "diffusion": cuts_canvases,
    "canvas_policy": runs_what_is_read,
}
