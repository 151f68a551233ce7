"""Composition of a method for a diffusion model, or an error if parts do not fit."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from decoding import base, prompt_settings, transform_chain
from decoding.catalogue import Part, Spec
from decoding.denoising import filling, schedule
from decoding.denoising.canvas_policy import (
    ALIGNMENTS,
    BLOCK_CAUSAL,
    SHIFTED,
    VISIBILITIES,
    CanvasPolicy,
)
from decoding.denoising.transition import Program
from decoding.loops import streams as model_streams
from decoding.method import ROLES, Method
from decoding.prompt_settings import Composition
from models.errors import MethodError

RULE = Spec("diffusion/llada")  # of a schedule that chooses no positions
POLICY = Spec("caches/recompute")


def is_canvas(lm: Any) -> bool:
    """Return whether a model writes canvases: it was trained to fill in masks."""
    return getattr(lm.model.config, "mask_token", None) is not None


def compose(
    method: Method,
    lm: Any,
    temperature: Any,
    drafts: Mapping[str, Any] | None,
    streams: base.Streams | None,
    stop: Any,
    stop_token_ids: Any,
) -> Composition:
    """Build the parts of `method` for the diffusion model `lm`; see `compose.compose`.

    Raises:
        MethodError: a part that a canvas cannot have, or parts that disagree.
    """
    config = lm.model.config
    _check(method, lm)
    beside: dict[str, Any] = dict(streams or {})
    heats = prompt_settings.temperatures(temperature)
    available: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "eos": tuple(config.eos),
        "model": lm.model,
        "streams": tuple(beside),
        "greedy": not any(heat > 0 for heat in heats),
        "visibility": next(v for v in config.visibility if v != "causal"),
        "visibilities": config.visibility,
        "block_size": config.block_size,
        **(drafts or {}),
    }
    if lm.tokenizer is not None:
        available["tokenizer"] = lm.tokenizer
    plan: tuple[Part, ...] = method.schedule
    built = {part.name: part.build(available) for part in plan}
    if not any(part.select for part in built.values()):
        plan = (RULE, *plan)
        built = {RULE.name: RULE.build(available), **built}
    if len(built) < len(plan):
        raise MethodError(
            f"schedule={[part.name for part in plan]} names a part twice: keep one"
        )
    merged = schedule.merged(built)
    policy_part = method.policy if method.policy != Spec("caches/dense") else POLICY
    policy: CanvasPolicy = policy_part.build(available)
    if merged.branches > 1 and not policy.steady:
        raise MethodError(
            f"{policy_part.name} runs other positions in every step, so one forward "
            "cannot verify several states: use another policy, or leave the part with "
            "branches out"
        )
    specs, transforms = prompt_settings.transforms(
        method.transforms, heats, available, filling.on_canvas
    )
    law = transforms[0]
    built_law = [filling.on_canvas(spec.build(available)) for spec in specs]
    _check_transforms(specs, built_law)
    _check_streams(law, specs, beside, policy)
    if policy.foresees and (merged.ahead is None or merged.stop is not None):
        raise MethodError(
            f"{policy_part.name} with a window runs what a forward commits, and not "
            "the other guesses: use Spec('diffusion/llada', order='random'), whose "
            "order is drawn before, and no part that ends texts"
        )
    automaton, starts = prompt_settings.stopper(stop, lm)
    guides = next((i for i, t in enumerate(built_law) if t.warper), len(specs))
    program = Program(
        lm.model,
        merged,
        law,
        policy,
        config.alignment == SHIFTED,
        (config.mask_token,),
        transform_chain.chain(*built_law[:guides]) if guides else None,
        guides,
        beside,
        automaton is not None,
    )
    ids = prompt_settings.lists(stop_token_ids)
    numbers = (heats, transforms, starts, ids, tuple(config.eos))
    settings = prompt_settings.settings(*numbers)
    parts = (*plan, policy_part, *specs)
    guarantee = base.weakest(
        merged.guarantee, *(part.card.guarantee for part in (policy_part, *specs))
    )
    own_streams = tuple((name, s.model, s.params) for name, s in beside.items())
    # What differs in a grammar's kind alone has one `static`.
    on_host = law.holes is not None and law.holes.allowed is None
    static = tuple(part.static for part in parts)
    key = (lm.model, own_streams, static, program.stop, on_host)
    return Composition(program, key, guarantee, settings, automaton)


def _check(method: Method, lm: Any) -> None:
    """Refuse parts of the loop for drafts, and models that no canvas fits."""
    config = lm.model.config
    others = [getattr(method, role) for role in ROLES if role != "policy"]
    others += method.rewards
    names = [part.name for part in others if part is not None]
    names = [name for name in names if name != "drafters/plain"]
    if names:
        raise MethodError(
            f"{names} belong to autoregressive decoding, and {lm} is a diffusion "
            "model: give a schedule, such as Method(schedule=('diffusion/fast_dllm',))"
        )
    card = method.policy.card
    if method.policy != Spec("caches/dense") and card.kind != "canvas_policy":
        raise MethodError(
            f"{method.policy.name} evicts or changes keys of a text that grows at its "
            "end: for a canvas use caches/recompute, prefix, dual, dkv or block_causal"
        )
    for name, known in (("alignment", ALIGNMENTS), ("visibility", VISIBILITIES)):
        value = getattr(config, name)
        values = value if name == "visibility" else (value,)
        if not values or any(v not in known for v in values):
            raise MethodError(f"the model's {name}={value!r}: use one of {known}")
    if all(v == "causal" for v in config.visibility):
        raise MethodError(
            f"the model has a mask_token and visibility={config.visibility}: a canvas "
            "needs 'bidirectional' or 'block_causal'"
        )
    if any(getattr(config, "windows", ())):
        raise MethodError(
            "the model has sliding windows, which are of causal attention: a canvas "
            "needs full attention"
        )
    like = jax.eval_shape(lambda: lm.model.init_cache(1, 16))
    if any(getattr(layer, "streamed", False) for layer in like.layers):
        raise MethodError(
            "the model's cache is paged or quantised, and a canvas writes slots again "
            "and again: load the model with the dense cache"
        )
    if BLOCK_CAUSAL in config.visibility and config.block_size < 1:
        raise MethodError(
            f"the model has block-causal attention and block_size={config.block_size}: "
            "use 1 or more"
        )


def _check_transforms(
    specs: Sequence[Part], built: Sequence[base.LogitsTransform]
) -> None:
    """Refuse transforms that neither read one position nor have holes."""
    late = [s.name for s, part in zip(specs, built) if part.advance or part.numbers]
    if late:
        raise MethodError(
            f"{late} follow a text from left to right, and a canvas is written in any "
            "order: leave them out, or constrain it by a grammar"
        )
    fill = [spec.name for spec, part in zip(specs, built) if part.holes is not None]
    if len(fill) > 1:
        raise MethodError(
            f"{fill} each keep a canvas possible, and together they may not: keep one"
        )


def _check_streams(
    law: base.LogitsTransform,
    specs: Sequence[Part],
    streams: Mapping[str, Any],
    policy: CanvasPolicy,
) -> None:
    prompt_settings.check_streams(law, specs, streams)
    if wrong := sorted({*streams} - {*model_streams.models(streams)}):
        raise MethodError(
            f"the streams {wrong} read the target's states, which a canvas does not "
            "give: use models"
        )
    if streams and policy.block:
        raise MethodError(
            f"the streams {list(streams)} may have prompts of other lengths, where "
            "blocks of block-causal attention do not meet: use bidirectional attention"
        )
