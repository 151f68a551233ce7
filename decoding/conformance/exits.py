"""The contract of exits.

One that chooses layers (`ExitPolicy.layers`) is also run on the peaked transformer,
where a wrong state or a missing key changes a text.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from decoding import base
from decoding.catalogue import Spec
from decoding.conformance import kit, peaked
from decoding.conformance.require import require
from decoding.method import Method
from models.errors import MethodError

HEATS = (0.0, 0.8, 0.8, 0.0, 0.8)  # of the peaked model's prompts


def check(spec: Spec) -> None:
    """Check an exit against every contract of this file.

    Raises:
        AssertionError: it breaks a property; the message names it.
    """
    part = kit.spec(spec.name, **spec.arguments)
    plain = kit.Run(Method(exit=part))
    wide = Method(kit.spec("drafters/prompt_lookup"), exit=part)
    exits = plain.parts.program.exit
    if exits.path_pure:
        drafts_keep_the_text(spec, kit.Run(wide), plain)
    else:
        wider_blocks_are_refused(spec, wide)
    if exits.layers is not None:
        whole_is_the_model(spec, of_peaked(Method(exit=part)))
        plain = of_peaked(Method(exit=part))
        layers_depend_on_the_place(spec, plain)
        if exits.path_pure:
            drafted = of_peaked(tree(part))
            drafts_keep_the_text(spec, drafted, plain, peaked_texts)
            rows_are_apart(spec, drafted)


def tree(part: Spec) -> Method:
    """Make a method with a tree of drafts under an exit."""
    topology = kit.spec("topologies/static")
    return Method(kit.spec("drafters/model"), topology=topology, exit=part)


def of_peaked(method: Method) -> kit.Run:
    """Run a method on the peaked transformer, at `HEATS`.

    The whole target drafts for itself, so that long paths are accepted.
    """
    lm = peaked.model()
    config, beside = lm.config, {"draft": lm}
    if method.exit is not None and "exits" in method.exit.card.needs:
        width = config.d_model
        beside["exits"] = kit.exit_params(method.exit.name, config.n_layers, width)
    needed = {name: beside[name] for name in beside if name in method.needs}
    return kit.Run(method, HEATS, lm=lm, beside=needed)


def peaked_start(run: kit.Run, prompts=peaked.PROMPTS):
    """Return the state after the prompts."""
    return run.start(prompts, new=peaked.NEW, size=peaked.SIZE)


def peaked_texts(run: kit.Run, prompts=peaked.PROMPTS) -> list:
    """List the texts of the peaked model's prompts."""
    return kit.texts(run.advance(peaked_start(run, prompts)), prompts)


def drafts_keep_the_text(
    spec: Spec, drafted: kit.Run, plain: kit.Run, texts=kit.Run.texts
) -> None:
    """Require from drafts the text of plain decoding under the same exit."""
    same = texts(drafted) == texts(plain)
    require(same, spec, "a draft changes the text, and it is path_pure")


def wider_blocks_are_refused(spec: Spec, wide: Method) -> None:
    """Require that an exit that is not path_pure refuses blocks of several nodes."""
    try:
        kit.Run(wide, beside=kit.models(wide))
    except MethodError:
        return
    require(False, spec, "it is not path_pure, and a wider draft is taken")


def whole_is_the_model(spec: Spec, run: kit.Run) -> None:
    """Require the model's own bits where no node passes a layer. `run` is altered."""
    program = run.parts.program
    depth = program.model.config.n_layers

    def every(state: base.State, positions):
        run = jnp.ones((depth, 2), bool)
        return run, jnp.zeros((depth, *positions.shape), bool)

    run.alter(exit=program.exit._replace(layers=every))
    ends = [r.advance(peaked_start(r)) for r in (run, of_peaked(Method()))]
    same = kit.same(*((end.tokens, end.logprobs) for end in ends))
    require(same, spec, "with every layer it is not the model")
    evals, ran = np.asarray(ends[0].counters.layers).T
    due = depth * np.asarray(ends[0].counters.new_tokens)
    counted = (evals == due).all() and (ran == due).all()
    require(counted, spec, f"{evals} and {ran} layers are counted, not {due}")


def layers_depend_on_the_place(spec: Spec, run: kit.Run) -> None:
    """Require layers that no round changes, and that no later token adds to.

    A token attends to earlier ones: their keys are there in all layers that it takes.
    """
    exits, state = run.parts.program.exit, peaked_start(run)
    assert exits.layers is not None
    length = np.asarray(state.length)
    places = jnp.arange(length.max() + peaked.NEW, dtype=jnp.int32)
    places = jnp.broadcast_to(places, (len(length), len(places)))
    depth, skips = run.parts.program.model.config.n_layers, False
    before: np.ndarray | None = None
    for _ in range(4):
        chosen, gate = exits.layers(state.exit, places)
        needs: Any = np.ones((depth, *places.shape), bool)
        if chosen is not None:
            needs &= np.asarray(chosen.any(1))[:, None, None]
        if gate is not None:
            needs &= ~np.asarray(gate)
        nested = (needs[..., 1:] <= needs[..., :-1]).all()
        require(nested, spec, "a token takes a layer where it misses earlier keys")
        same = before is None or (needs == before).all()
        require(same or not exits.path_pure, spec, "a round changes a place's layers")
        before, skips = needs, skips or not needs.all()
        state = run.advance(state, peaked.NEW // 4)
    require(skips, spec, "the example skips no layer, and would show nothing")


def rows_are_apart(spec: Spec, run: kit.Run) -> None:
    """Require a row's text beside other prompts, some of which take other layers."""
    others = [[(t + 1) % kit.EOS for t in p] for p in peaked.PROMPTS[1:]]
    beside = peaked_texts(run, [peaked.PROMPTS[0], *others])
    require(beside[0] == peaked_texts(run)[0], spec, "a text depends on other rows")


def at_the_root(run: kit.Run) -> kit.Run:
    """Plant a fault: all nodes of a block take the layers of its root."""
    exits = run.parts.program.exit
    inner = exits.layers
    assert inner is not None

    def layers(state: base.State, positions):
        return inner(state, jnp.broadcast_to(positions[:, :1], positions.shape))

    return run.alter(exit=exits._replace(layers=layers))
