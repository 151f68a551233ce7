"""Rotary parameters of config.json, in the spellings of transformers 4 and 5.

Version 4 writes `rope_theta` and `rope_scaling` (with `type` or `rope_type`), version 5
one dict `rope_parameters`, which some families nest by layer type. A `transformer.Rope`
keeps its dict in `parameters`, so that it can be written back.
"""

import dataclasses
import math
from typing import Any

from models import transformer
from models.checkpoints import fields
from models.errors import ConfigError

KEYS = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
    "longrope": ("short_factor", "long_factor", "original_max_position_embeddings"),
    "yarn": ("factor",),
    "proportional": (),
}
OPTIONAL = {
    "longrope": ("factor", "attention_factor"),
    "yarn": (
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
    ),
    "proportional": ("factor",),
}


def parameters(f: fields.Fields, theta: float) -> dict[str, Any]:
    """Read the rope dict of version 5 from either spelling; `theta` is the default."""
    scaling = f.mapping("rope_scaling")
    flat = f.mapping("rope_parameters")
    merged: dict[str, Any] = {"rope_theta": f.number("rope_theta", theta)}
    merged["partial_rotary_factor"] = f.number("partial_rotary_factor", 1.0)
    return normal({**merged, **scaling, **flat})


def normal(raw: dict[str, Any]) -> dict[str, Any]:
    """Rename `type` to `rope_type`; drop nulls and a rotary factor of 1."""
    out = {key: value for key, value in raw.items() if value is not None}
    old = out.pop("type", "default")
    out.setdefault("rope_type", old)
    if out.get("partial_rotary_factor") == 1.0:
        del out["partial_rotary_factor"]
    return out


def build(
    raw: dict[str, Any], head_dim: int, max_positions: int, where: str
) -> transformer.Rope:
    """Compute the frequencies of a rope dict.

    Linear: position interpolation (arXiv 2306.15595). llama3: the Llama 3.1 smoothing
    by wavelength. longrope: LongRoPE (arXiv 2402.13753), two factor lists of which the
    long one serves caches of more than the original context. yarn: YaRN (arXiv
    2309.00071, section 3). proportional: frequencies over all dimensions of a head, 0
    beyond the rotated ones (Gemma 4).

    Args:
        raw: a dict from `normal`.
        head_dim: the dimensions of a head.
        max_positions: the longest context of the model.
        where: the file, for errors.
    """
    kind = raw["rope_type"]
    if kind not in KEYS:
        raise ConfigError(
            f"{where}: rope_type={kind!r} is not supported: use one of {sorted(KEYS)}"
        )
    missing = [key for key in KEYS[kind] if key not in raw]
    known = {"rope_type", "rope_theta", "partial_rotary_factor", *KEYS[kind]}
    unknown = sorted(set(raw) - known - set(OPTIONAL.get(kind, ())))
    # A file may have the original context with any type; only two types use it.
    unknown = [key for key in unknown if key != "original_max_position_embeddings"]
    if missing or unknown:
        raise ConfigError(
            f"{where}: rope parameters of type {kind!r} lack {missing} and have "
            f"unknown {unknown}: correct them in config.json"
        )
    for key, value in raw.items():
        items = value if isinstance(value, list) else [value]
        if key == "truncate" and isinstance(value, bool):
            continue
        if key != "rope_type" and not all(_positive(item) for item in items):
            raise ConfigError(f"{where}: {key}={value!r}: use a number above 0")
    share = raw.get("partial_rotary_factor", 1.0)
    if kind == "proportional":
        turned = int(head_dim * share) // 2
        every = transformer.rope_frequencies(head_dim, raw["rope_theta"])
        slowed = tuple(w / raw.get("factor", 1.0) for w in every[:turned])
        source = tuple(sorted((key, _frozen(value)) for key, value in raw.items()))
        still = (0.0,) * (len(every) - turned)
        return transformer.Rope(slowed + still, parameters=source)
    dim = int(head_dim * share)
    plain = transformer.rope_frequencies(dim, raw["rope_theta"])
    source = tuple(sorted((key, _frozen(value)) for key, value in raw.items()))
    if kind == "linear":
        plain = tuple(w / raw["factor"] for w in plain)
    if kind == "llama3":
        plain = tuple(_llama3(w, raw) for w in plain)
    if kind == "yarn":
        original = raw.get("original_max_position_embeddings", max_positions)
        plain = _yarn(plain, dim, original, raw)
        return transformer.Rope(plain, yarn_scale(raw), parameters=source)
    if kind != "longrope":
        return transformer.Rope(plain, parameters=source)
    original = raw["original_max_position_embeddings"]
    for key in ("short_factor", "long_factor"):
        if len(raw[key]) != len(plain):
            raise ConfigError(
                f"{where}: {key} has {len(raw[key])} entries for {len(plain)} pairs of "
                "rotated dimensions: give one factor per pair"
            )
    factor = raw.get("factor", max_positions / original)
    scale = raw.get("attention_factor")
    if scale is None:
        grown = (
            math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1
        )
        scale = float(grown)
    return transformer.Rope(
        tuple(w / s for w, s in zip(plain, raw["short_factor"])),
        scale,
        tuple(w / s for w, s in zip(plain, raw["long_factor"])),
        original,
        source,
    )


def with_base(config: transformer.Config, theta: float) -> transformer.Config:
    """Return `config` with frequencies of another base: `theta^(-2i/d)`, i < d/2.

    A base above the trained one turns every pair but the first more slowly, which
    lengthens the distance over which a model retrieves, without training.

    Raises:
        ConfigError: `theta` is no number above 0, or the model has not one plain RoPE.
    """
    if not _positive(theta):
        raise ConfigError(f"rope_theta={theta!r}: use a number above 0, like 40000")
    kinds = [dict(rope.parameters).get("rope_type") for rope in config.ropes]
    if config.position != "rope" or kinds != ["default"]:
        has = f"ropes of the types {kinds}" if kinds else f"{config.position} positions"
        raise ConfigError(
            f"rope_theta={theta}: the model has {has}, and a base can be changed only "
            "where there is one RoPE of the type 'default': leave rope_theta out, or "
            "edit the rope parameters in config.json"
        )
    raw = {**written(config.ropes[0]), "rope_theta": theta}
    changed = build(raw, config.head_dim, config.max_positions, "rope_theta")
    return dataclasses.replace(config, ropes=(changed,))


def _positive(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and value > 0


def _llama3(frequency: float, raw: dict[str, Any]) -> float:
    low, high = raw["low_freq_factor"], raw["high_freq_factor"]
    turns = raw["original_max_position_embeddings"] * frequency / (2 * math.pi)
    if turns > high:
        return frequency
    if turns < low:
        return frequency / raw["factor"]
    smooth = (turns - low) / (high - low)
    return (1 - smooth) * frequency / raw["factor"] + smooth * frequency


def _yarn(
    plain: tuple[float, ...], dim: int, original: int, raw: dict[str, Any]
) -> tuple[float, ...]:
    """Slow the pairs that turn few times in the original context, smoothly."""

    def pair(turns: float) -> float:
        """Return the pair, as a number, that turns so often in the context."""
        log = math.log(original / (2 * math.pi * turns))
        return dim * log / (2 * math.log(raw["rope_theta"]))

    low, high = pair(raw.get("beta_fast", 32.0)), pair(raw.get("beta_slow", 1.0))
    if raw.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    high = high + 0.001 if low == high else high
    ramp = [min(max((i - low) / (high - low), 0.0), 1.0) for i in range(len(plain))]
    return tuple(w * (1 - r + r / raw["factor"]) for w, r in zip(plain, ramp))


def yarn_scale(raw: dict[str, Any]) -> float:
    """Return what multiplies cos and sin of a YaRN dict."""
    if "attention_factor" in raw:
        return float(raw["attention_factor"])
    if "mscale" in raw and "mscale_all_dim" in raw:
        parts = [yarn_growth(raw, raw[key]) for key in ("mscale", "mscale_all_dim")]
        return parts[0] / parts[1]
    return yarn_growth(raw, 1.0)


def yarn_growth(raw: dict[str, Any], scale: float) -> float:
    """Return 0.1 m ln(s) + 1 of a factor s above 1, else 1."""
    factor = raw["factor"]
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def written(rope: transformer.Rope) -> dict[str, Any]:
    """Return the rope dict of version 5 for config.json."""
    if not rope.parameters:
        raise ConfigError(
            "this Rope has no `parameters` to write to config.json: build it with "
            "transformer.rope(dim, theta)"
        )
    return {k: list(v) if isinstance(v, tuple) else v for k, v in rope.parameters}


def spellings(rope: transformer.Rope) -> dict[str, Any]:
    """Return the config.json fields of a model with one rope, for both versions."""
    new = written(rope)
    old = {k: v for k, v in new.items() if k not in ("rope_theta", "rope_type")}
    partial = old.pop("partial_rotary_factor", None)
    out = {"rope_theta": new["rope_theta"], "rope_parameters": new}
    if partial is not None:
        out["partial_rotary_factor"] = partial
    if new["rope_type"] != "default":
        out["rope_scaling"] = {"rope_type": new["rope_type"], **old}
    return out
