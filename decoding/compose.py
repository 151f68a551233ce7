"""Composition of a method into a program, or an error if its parts do not fit."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import jax

from decoding import base, transform_chain
from decoding.automata import stop_strings
from decoding.block_width import controller
from decoding.catalogue import Part, Spec
from decoding.loops.decode import Program
from decoding.method import PLAIN, Method
from models.distributed import sharding
from models.errors import MethodError, hint
from models.text import hf_tokenizer


@dataclass(frozen=True)
class Composition:
    """A program, the key of its compiled form, and its guarantee."""

    program: Program
    key: tuple
    guarantee: str
    stop: Any = None  # the stop automaton, or None


def compose(
    method: Method,
    lm: Any,
    temperature: float = 0.0,
    drafts: Mapping[str, Any] | None = None,
    streams: Mapping[str, base.Stream] | None = None,
    stop: tuple[str, ...] = (),
    width: str | int = "paper",
) -> Composition:
    """Build the parts of `method` and join them into a program for `lm`.

    Args:
        method: the method to compose.
        lm: the target, as `models.load` returns it.
        temperature: 0 decodes greedily.
        drafts: draft models and params of heads, by name.
        streams: other models run on the same tokens, by name.
        stop: strings that end a text.
        width: nodes of a verified block: those of the method ("paper"), those that
            decode fastest ("auto"; "paper" if the text depends on the width), or at
            most a number of them.

    Raises:
        MethodError: an unknown name or argument, parts that disagree, or a draft model
            with another vocabulary or tokenizer.
    """
    drafts, streams = dict(drafts or {}), dict(streams or {})
    if not temperature >= 0:
        raise MethodError(
            f"temperature={temperature}: use a number >= 0 (0 decodes greedily)"
        )
    target = lm.model.config
    available: dict[str, Any] = {
        "vocab_size": target.vocab_size,
        "eos": tuple(target.eos),
        "model": lm.model,
        "streams": tuple(streams),
        "greedy": temperature == 0,
    }
    if lm.tokenizer is not None:
        available["tokenizer"] = lm.tokenizer
    for name, draft in drafts.items():
        available[name] = draft
        config = getattr(getattr(draft, "model", None), "config", None)
        if config is not None and config.vocab_size != target.vocab_size:
            raise MethodError(
                f"drafts[{name!r}] has a vocabulary of {config.vocab_size}, the target "
                f"one of {target.vocab_size}: use a draft with the target's tokenizer"
            )
        if config is not None:
            tokenizer = getattr(draft, "tokenizer", None)
            hf_tokenizer.check_same(
                f"drafts[{name!r}]", tokenizer, lm.tokenizer, MethodError
            )
            available[name] = draft.model

    verifier_spec = method.verifier
    if verifier_spec is not None and temperature == 0:
        if verifier_spec.build(available).guarantee != base.LOSSY:
            verifier_spec = None  # all lossless verifiers are greedy at temperature 0
    if verifier_spec is None:
        name = "gumbel_coupled" if temperature > 0 else "greedy"
        verifier_spec = Spec(f"verifiers/{name}")
    verifier = verifier_spec.build(available)
    if temperature > 0 and verifier.guarantee == base.ARGMAX:
        raise MethodError(
            f"{verifier_spec.name} ignores temperature={temperature}: use 0 "
            "or a verifier that samples"
        )
    available["draw"] = verifier.draws[0]
    drafter_spec = method.drafter or PLAIN
    if method.topology is not None:
        if "topology" not in drafter_spec.card.needs:
            raise MethodError(
                f"{drafter_spec.name} has no use for topology={method.topology.name}: "
                "leave the topology out"
            )
        available["topology"] = topology(method.topology, verifier, available)
    drafter = drafter_spec.build(available)
    specs, transform = _transforms(method.transforms, temperature, available)
    missing = [s for s in transform.streams if s not in streams]
    if missing:
        raise MethodError(
            f"the transforms {[s.name for s in specs]} read the streams {missing}: "
            "pass streams={name: Stream(model, params_key)}"
        )
    automaton = None
    if stop:
        if lm.tokenizer is None:
            raise MethodError(f"stop={list(stop)} needs a tokenizer: {lm} has none")
        automaton = stop_strings.stopper(stop, lm.tokenizer, target.vocab_size)
    policy = method.policy.build(available)
    exits = base.WHOLE if method.exit is None else method.exit.build(available)
    if drafter.nodes > 1 and not exits.path_pure:
        raise MethodError(
            f"{drafter_spec.name} drafts blocks of {drafter.nodes} nodes and "
            f"{method.exit} serves blocks of one node only: leave one of them out"
        )
    optional = [p for p in (method.topology, method.exit) if p is not None]
    parts: tuple[Part, ...] = (drafter_spec, method.policy, *specs, *optional)
    # A verifier's guarantee may depend on its arguments, so its card is not enough.
    guarantee = base.weakest(*(p.card.guarantee for p in parts), verifier.guarantee)
    if temperature > 0 and guarantee == base.ARGMAX:
        guarantee = base.LOSSY
    widths, width_policy = _widths(width, drafter, guarantee)
    program = Program(
        exits.wrap(drafter.wrap(lm.model)),
        drafter,
        verifier,
        transform,
        policy,
        exits,
        width_policy,
        widths,
        tuple(target.eos),
        streams,
        bool(stop),
    )
    models = tuple(_identity(d) for d in drafts.values())
    stream_ids = tuple((n, s.model, s.params) for n, s in streams.items())
    statics = tuple(p.static for p in (*parts, verifier_spec))
    policy_key = (widths, width_policy is base.PAPER)
    key = (lm.model, models, stream_ids, statics, bool(stop), policy_key)
    return Composition(program, key, guarantee, automaton)


def _widths(
    width: str | int, drafter: base.Drafter, guarantee: str
) -> tuple[tuple[int, ...], base.WidthPolicy]:
    """Return the block widths to compile, and the policy that chooses among them."""
    if type(width) is str and width not in ("auto", "paper"):
        raise MethodError(
            f'width={width!r}{hint(width, ("auto", "paper"))}: use "auto", '
            '"paper" or a number of nodes'
        )
    lossy = guarantee == base.LOSSY
    if width == "paper" or drafter.nodes == 1 or (width == "auto" and lossy):
        narrower = {w for w in drafter.blocks if w < drafter.nodes}
        return (*sorted(narrower), drafter.nodes), base.PAPER
    if width == "auto":
        widths = controller.ladder(drafter.nodes)
        return widths, controller.policy(widths, drafter.pauses)
    if lossy:
        raise MethodError(
            f"width={width}: the text of this method depends on its draft's size, as "
            'its guarantee is LOSSY; use width="paper"'
        )
    if not 1 <= int(width) <= drafter.nodes:
        raise MethodError(
            f"width={width}: the method drafts blocks of {drafter.nodes} nodes; use 1 "
            f"to {drafter.nodes}"
        )
    return (int(width),), controller.policy((int(width),))


def params(
    lm: Any,
    drafts: Mapping[str, Any] | None = None,
    streams: Mapping[str, base.Stream] | None = None,
) -> base.Params:
    """Collect the weights of the target and of `drafts`, laid out by the target's plan.

    Args:
        drafts: loaded models or params, by a name of `base.Params` or the name of the
            params that a stream reads.

    Raises:
        MethodError: a name that nothing reads, or a stream whose params are missing.
    """
    drafts, streams = drafts or {}, streams or {}
    roles = [name for name in base.Params.__annotations__ if name != "target"]
    names = [*roles, *(stream.params for stream in streams.values())]
    for name in drafts:
        if name not in names:
            raise MethodError(
                f"drafts[{name!r}] is read by no part and no stream"
                f"{hint(name, names)}; the names are {names}"
            )
    weights = {"target": lm.params}
    weights |= {name: getattr(d, "params", d) for name, d in drafts.items()}
    for name, stream in streams.items():
        if stream.params not in weights:
            raise MethodError(
                f"stream {name!r} reads params {stream.params!r}: pass "
                f"drafts={{{stream.params!r}: ...}}"
            )
    return cast(base.Params, sharding.placed(lm.model.plan, weights))


def _identity(draft: Any) -> Any:
    """Identify a draft in a program's key: by its model, or by its params' shapes."""
    model = getattr(draft, "model", None)
    if model is not None:
        return model
    leaves, tree = jax.tree.flatten(draft)
    return tree, tuple((x.shape, str(x.dtype)) for x in leaves)


def topology(
    spec: Part, verifier: base.Verifier, available: Mapping[str, Any]
) -> base.Topology:
    """Build a topology with the offered draw that the verifier prefers.

    Raises:
        MethodError: the verifier takes none of the topology's draws.
    """
    offered = spec.card.draws
    draws = [draw for draw in verifier.draws if draw in offered]
    if not draws:
        raise MethodError(
            f"{spec.name} draws {offered} and the verifier takes {verifier.draws}: "
            "choose another verifier, or leave it out"
        )
    return spec.build({**available, "draw": draws[0]})


def _transforms(
    specs: tuple[Part, ...], temperature: float, available: Mapping[str, Any]
) -> tuple[tuple[Part, ...], base.LogitsTransform]:
    """Build the chain, with the temperature before the first warper."""
    built = [spec.build(available) for spec in specs]
    if temperature > 0:
        if any(spec.name == "transforms/temperature" for spec in specs):
            raise MethodError(
                f"temperature={temperature} and a temperature transform: give one of "
                "the two"
            )
        at = next((i for i, t in enumerate(built) if t.warper), len(built))
        spec = Spec("transforms/temperature", temperature=float(temperature))
        specs = (*specs[:at], spec, *specs[at:])
        built.insert(at, spec.build(available))
    return specs, transform_chain.chain(*built)
