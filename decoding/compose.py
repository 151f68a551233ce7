"""Composition of a method into a program, or an error if its parts do not fit."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import jax
import numpy as np

from decoding import base, catalogue, prompt_settings, search_parts
from decoding.automata import matchers
from decoding.block_width import choice
from decoding.block_width.policy import PAPER
from decoding.catalogue import Part, Spec
from decoding.denoising import composed
from decoding.loops.decode import Program
from decoding.method import PLAIN, Method
from decoding.prompt_settings import Composition
from decoding.verifiers import greedy
from models.distributed import sharding
from models.errors import MethodError, hint
from models.text import hf_tokenizer

MASKED_DRAFT = "masked draft"  # family of drafters whose draft model fills masks


def compose(
    method: Method,
    lm: Any,
    temperature: float | Sequence[float] = 0.0,
    drafts: Mapping[str, Any] | None = None,
    streams: base.Streams | None = None,
    stop: Sequence[str] | Sequence[Sequence[str]] = (),
    stop_token_ids: Sequence[int] | Sequence[Sequence[int]] = (),
    width: str | int = "paper",
) -> Composition:
    """Build the parts of `method` and join them into a program for `lm`.

    What differs by prompt lies in the states of the rows. So one program serves all
    numbers, and each prompt has the text of a composition of its settings alone.

    Args:
        method: the method to compose; a transform may be a `catalogue.PerPrompt`.
        lm: the target, as `models.load` returns it.
        temperature: 0 decodes greedily. One number, or one a prompt.
        drafts: draft models and params of heads, by name.
        streams: other models run on the same tokens, and laws of the target's states.
        stop: strings that end a text, or one list of them a prompt.
        stop_token_ids: tokens that end a text, beside EOS, or one list a prompt.
        width: nodes of a verified block: those of the method ("paper"), those that
            decode fastest ("auto"; "paper" if the text depends on the width), or at
            most a number of them.

    Raises:
        MethodError: an unknown name or argument, parts that disagree, a draft model
            with another vocabulary or tokenizer, or lists of different lengths.
    """
    if composed.is_canvas(lm):
        about = (method, lm, temperature, drafts, streams, stop, stop_token_ids)
        return composed.compose(*about)
    if method.schedule:
        raise MethodError(
            f"{[part.name for part in method.schedule]} write a canvas, and {lm} is no "
            "diffusion model (its config has no mask_token): leave the schedule out"
        )
    if (card := method.policy.card).kind:
        raise MethodError(
            f"{method.policy.name} keeps keys of canvases ({card.family}), and {lm} is "
            "no diffusion model: use another cache policy"
        )
    drafts, streams = dict(drafts or {}), dict(streams or {})
    heats = prompt_settings.temperatures(temperature)
    is_sampled = any(heat > 0 for heat in heats)
    is_listed = np.ndim(temperature) > 0 and is_sampled
    target = lm.model.config
    if getattr(target, "labels", 0):
        raise MethodError(
            "the target has the head of a classifier: give it as drafts={'reward': ...}"
        )
    available: dict[str, Any] = {
        "vocab_size": target.vocab_size,
        "eos": tuple(target.eos),
        "model": lm.model,
        "streams": tuple(streams),
        "greedy": not is_sampled,
    }
    if lm.tokenizer is not None:
        available["tokenizer"] = lm.tokenizer
    for name, draft in drafts.items():
        available[name] = draft
        config = getattr(getattr(draft, "model", None), "config", None)
        mask = getattr(config, "mask_token", None)
        size = getattr(config, "vocab_size", None)
        if config is not None and target.vocab_size not in (size, mask):
            raise MethodError(
                f"drafts[{name!r}] has a vocabulary of {size}, the target one of "
                f"{target.vocab_size}: use a draft with the target's tokenizer"
            )
        if mask is not None and name == "draft":
            _check_fills_masks(method)
        if config is not None:
            tokenizer = getattr(draft, "tokenizer", None)
            hf_tokenizer.check_same(
                f"drafts[{name!r}]", tokenizer, lm.tokenizer, MethodError
            )
            available[name] = draft.model

    verifier_spec = method.verifier
    if verifier_spec is not None and verifier_spec.card.kind:
        raise MethodError(
            f"{verifier_spec.name} verifies real-valued tokens and {lm} writes tokens "
            "of a vocabulary: use decoding/real_valued/loop.py"
        )
    if verifier_spec is not None and not is_sampled:
        if verifier_spec.build(available).guarantee != base.LOSSY:
            verifier_spec = None  # all lossless verifiers are greedy at temperature 0
    if verifier_spec is None:
        name = "gumbel_coupled" if is_sampled else "greedy"
        verifier_spec = Spec(f"verifiers/{name}")
    verifier = verifier_spec.build(available)
    if is_sampled and verifier.guarantee == base.ARGMAX:
        raise MethodError(
            f"{verifier_spec.name} ignores temperature={temperature}: use 0 "
            "or a verifier that samples"
        )
    # Coupled verifiers draw by the noise of positions, which greedy rows have none of;
    # lossy ones keep their own rule at temperature 0.
    is_mixed = is_listed and base.COUPLED not in verifier.draws
    is_mixed = is_mixed and verifier.guarantee == base.LAW
    if is_mixed:
        verifier = greedy.in_rows(verifier)
    available["draw"] = verifier.draws[0]
    drafter_spec = method.drafter or PLAIN
    if method.topology is not None:
        if not any("topology" in card.needs for card in catalogue.cards(drafter_spec)):
            raise MethodError(
                f"{drafter_spec.name} has no use for topology={method.topology.name}: "
                "leave the topology out"
            )
        available["topology"] = topology(method.topology, verifier, available)
    lanes, of_rows = None, drafter_spec
    if drafter_spec.card.kind == "lanes":
        lanes, of_rows = drafter_spec.build(available), PLAIN
    drafter = of_rows.build(available)
    specs, transforms = prompt_settings.transforms(method.transforms, heats, available)
    transform = transforms[0]
    matched: Any = matchers.Matched(-(-target.vocab_size // 32))
    streams |= {name: matched for name, _ in transform.numbers}
    prompt_settings.check_streams(transform, specs, streams)
    stop_ids = prompt_settings.lists(stop_token_ids)
    automaton, starts = prompt_settings.stopper(stop, lm)
    policy = method.policy.build(available)
    exits = base.WHOLE if method.exit is None else method.exit.build(available)
    if drafter.nodes > 1 and not exits.path_pure:
        raise MethodError(
            f"{drafter_spec.name} drafts blocks of {drafter.nodes} nodes and "
            f"{method.exit} serves blocks of one node only: leave one of them out"
        )
    if policy.joint and exits.layers is not None:
        raise MethodError(
            f"{method.policy.name} joins the keys of layers, which {method.exit} may "
            "leave out of a token: leave one of them out"
        )
    derived = [n for n, s in streams.items() if isinstance(s, base.Derived)]
    if derived and method.exit is not None:
        raise MethodError(
            f"the streams {derived} read the target's states, which {method.exit.name} "
            "may stop short of: leave one of them out"
        )
    optional = [p for p in (method.topology, method.exit) if p is not None]
    parts: tuple[Part, ...] = (drafter_spec, method.policy, *specs, *optional)
    # A verifier's guarantee may depend on its arguments, so its card is not enough.
    # Under what is path-pure the text is that of plain decoding under the same.
    pure = [method.policy] if policy.path_pure else []
    pure += [method.exit] if method.exit is not None and exits.path_pure else []
    judged = [p for p in parts if all(p is not part for part in pure)]
    guarantee = base.weakest(
        *(c.guarantee for p in judged for c in catalogue.cards(p)), verifier.guarantee
    )
    if is_sampled and guarantee == base.ARGMAX:
        guarantee = base.LOSSY
    most = max(len({*target.eos, *ids}) for ids in stop_ids)
    given = {**available, "ends": most}
    found = search_parts.build(method, given, temperature, drafter, lanes)
    if method.search is not None:
        parts = (*parts, method.search, *method.rewards)
        streams |= search_parts.streams(found, streams)
    if found.select is not None:
        drafter = search_parts.drafter(found)
    rounds = PLAIN.build({}) if found.select is not None else drafter
    widths, width_policy = choice.widths(width, rounds, guarantee)
    if found.search is not None:
        guarantee = base.weakest(guarantee, found.search.guarantee)
    lossy = [p.name.rpartition("/")[2] for p in pure if p.card.guarantee == base.LOSSY]
    if lossy:
        guarantee = base.under(guarantee, " and ".join(lossy))
    program = Program(
        exits.wrap(drafter.wrap(lm.model)),
        drafter,
        verifier,
        transform,
        policy,
        exits,
        width_policy,
        widths,
        streams,
        automaton is not None,
        *found,
    )
    numbers = (heats, transforms, starts, stop_ids, tuple(target.eos))
    settings = prompt_settings.settings(*numbers)
    models = tuple(_identity(d) for d in drafts.values())
    stream_ids = tuple((name, *_of_stream(s)) for name, s in streams.items())
    statics = tuple(p.static for p in (*parts, verifier_spec))
    block = (widths, width_policy is PAPER)
    prefills = tuple(p.static for p in (drafter_spec, method.policy, *optional))
    key = (lm.model, models, stream_ids, statics, program.stop, is_mixed, block)
    return Composition(program, key, guarantee, settings, automaton, prefills)


def _check_fills_masks(method: Method) -> None:
    """Refuse a diffusion model as the draft of parts that draft from left to right."""
    parts = [part for part in method.parts if "draft" in part.card.needs]
    wrong = [part.name for part in parts if part.card.family != MASKED_DRAFT]
    if wrong:
        raise MethodError(
            f"{wrong} read drafts['draft'] from left to right, and it is a diffusion "
            "model: draft with drafters/masked_diffusion, or give another draft"
        )


def _of_stream(stream: Any) -> tuple:
    """Identify a stream in a program's key; prompts are no part of a program."""
    if isinstance(stream, base.Stream):
        return stream.model, stream.params
    return tuple(stream)


def params(
    lm: Any,
    drafts: Mapping[str, Any] | None = None,
    streams: base.Streams | None = None,
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
