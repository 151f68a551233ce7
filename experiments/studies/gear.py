"""Caches that change values: nats, needles and bytes against dense decoding.

Windows and needles are read by `benchmarks.forced_reading`, all of an arm at once; what
a draft tree gives is measured on texts that are written freely.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import decoding
import models
from decoding import Method, Spec, recipes
from experiments import console
from experiments.benchmarks import forced_reading, long_context, long_nats, needle
from experiments.benchmarks.long_context import Case
from experiments.run_folder import RunFolder
from experiments.stage import Stage
from experiments.studies import common
from experiments.studies.search_tables import Row, table
from models import transformer
from models.cache_layouts import quantized
from models.errors import ConfigError
from models.surgery import kv_heads

DENSE = "dense"
LAYOUTS = {"int8": quantized.int8, "int4": quantized.int4}
DTYPES = {"float32": 4, "bfloat16": 2}
CLOSE = 0.03  # of the bytes that two arms are to share
Files = Sequence[tuple[str, Sequence[int]]]


def run(config: Any, store: RunFolder, lm: Any = None) -> dict[str, Any]:
    """Measure what is missing and return everything; `lm` is loaded unless given."""
    check(config)
    lm = lm or models.load(config.model)
    every = long_context.files(lm)
    own, files = every[: config.calibration], every[config.calibration :]
    arms = {DENSE: {"part": ""}, **config.arms.to_dict()}
    rows: dict[str, Row] = {}
    with console.bar(len(arms) + len(config.treed), "gear") as bar:
        for name, arm in arms.items():
            bar.doing(name)
            work = functools.partial(measured, config, lm, own, files, arm)
            rows[name] = store.make("rows", _key(name), work)
            bar.done(name)
        for name in config.treed:
            bar.doing(f"{name}, tree")
            work = functools.partial(treed, config, lm, own, files, arms[name])
            rows[name] |= store.make("rows", _key(f"{name} tree"), work)
            bar.done(name)
    return common.study(store, tables=tables(config, arms, rows))


def _key(name: str) -> str:
    return re.sub("[^a-z0-9]+", "-", name.lower())


def check(config: Any) -> None:
    """Raise ConfigError for what would fail later, before anything is compiled."""
    arms = {DENSE, *config.arms}
    named = {*config.treed, *(name for pair in config.claims for name in pair)}
    named |= {arm["like"] for arm in config.arms.values() if "like" in arm}
    if named - arms:
        raise ConfigError(f"no arm of config.arms is {sorted(named - arms)}")
    for name, arm in config.arms.items():
        if arm.get("layout", "int8") not in LAYOUTS:
            raise ConfigError(f"{name}: use a layout of {sorted(LAYOUTS)}")
    if not 0 < config.last < config.length or min(config.windows, config.needles) < 1:
        raise ConfigError(
            f"config.last={config.last}, length={config.length}, windows="
            f"{config.windows}, needles={config.needles}: use at least one of each, "
            "and a window longer than its last tokens"
        )


def cases(config: Any, lm: Any, files: Files) -> tuple[list[Case], list[Case]]:
    """Make the windows and the needles of all seeds, in the seeds' order."""
    windows, needles = [], []
    for seed in config.seeds:
        rest = (config.length, config.windows, seed, config.last)
        windows += long_nats.cases(files, *rest)
        depths = tuple(config.depths)
        found = (config.needle_length, depths, config.needles, seed)
        needles += needle.cases(lm, files, *found)
    return windows, needles


def built(config: Any, lm: Any, own: Files, arm: Mapping[str, Any]) -> tuple[Any, Spec]:
    """Make the model and the policy of an arm."""
    if "heads" in arm:
        texts = [text[: config.length] for _, text in own if len(text) >= config.length]
        tokens = np.asarray(texts, np.int32)
        return kv_heads.compress(lm, tokens, 2, **arm["heads"]), Spec("caches/dense")
    if "layout" in arm:
        cache = LAYOUTS[arm["layout"]](arm["window"])
        model = transformer.transformer(lm.model.config, cache=cache)
        lm = replace(lm, model=model)
    arguments = dict(arm.get("policy", {"name": "caches/dense"}))
    if "like" in arm:
        other = config.arms[arm["like"]].to_dict()
        arguments["window"] = window_of(config, lm, arguments, built_spec(other))
    return lm, Spec(arguments.pop("name"), **arguments)


def built_spec(arm: Mapping[str, Any]) -> Spec:
    """Make the policy of an arm that has no layout of its own."""
    arguments = dict(arm["policy"])
    return Spec(arguments.pop("name"), **arguments)


def window_of(config: Any, lm: Any, arguments: Mapping[str, Any], like: Spec) -> int:
    """Choose the window with which a policy of codes takes the bytes of `like`.

    Raises:
        ConfigError: no window comes within 3 %.
    """
    prompt = config.length - config.last
    rest = dict(arguments)
    name = rest.pop("name")
    size = functools.partial(
        forced_reading.kv_bytes, lm, prompt=prompt, new=config.last
    )
    bytes_of = lambda window: size(Spec(name, **rest, window=window), dtype=np.float32)
    whole = size(like, dtype=np.float32)
    least = forced_reading.BLOCK
    # Bytes are linear in the window.
    base, step = bytes_of(least), bytes_of(least + 1) - bytes_of(least)
    window = max(least, least + round((whole - base) / step))
    if abs(bytes_of(window) / whole - 1) > CLOSE:
        raise ConfigError(
            f"{name} with {rest} takes {bytes_of(window)} bytes at the least window of "
            f"{window}, and {like} {whole}: use fewer bits or larger groups"
        )
    return window


def measured(config: Any, lm: Any, own: Files, files: Files, arm: Any) -> Row:
    """Read all windows and needles; lists of figures by case."""
    windows, needles = cases(config, lm, files)
    changed, spec = built(config, lm, own, arm)
    found = forced_reading.read(changed, [*windows, *needles], spec)
    count = len(windows)
    right = [
        long_context.share_right(case, best)
        for case, best in zip(needles, found.best[count:])
    ]
    kv_bytes = {
        kind: [
            forced_reading.kv_bytes(
                changed, spec, length - config.last, config.last, kind
            )
            for length in sorted({config.length, *config.lengths})
        ]
        for kind in DTYPES
    }
    return {
        "nats": [float(np.mean(nats)) for nats in found.nats[:count]],
        "right": right,
        "slots": float(np.mean(found.slots[:count])),
        "kv_bytes": kv_bytes,
        "arguments": dict(spec.arguments),
    }


def treed(config: Any, lm: Any, own: Files, files: Files, arm: Any) -> Row:
    """Write texts plainly and with a draft tree."""
    changed, spec = built(config, lm, own, arm)
    texts = long_context.passages(files, config.prompts, 256, config.seeds[0])
    drafts = {name: models.load(draft) for name, draft in config.drafts.items()}
    method = recipes.method(config.tree)
    fields: dict[str, Any] = {"max_new_tokens": config.written, "width": "paper"}
    prompts = [list(text) for text in texts]
    plain = decoding.generate(changed, prompts, method=Method(policy=spec), **fields)
    tree = replace(method, policy=spec)
    out = decoding.generate(changed, prompts, method=tree, drafts=drafts, **fields)
    same = sum(a == b for a, b in zip(out.tokens, plain.tokens))
    return {"tree": out.stats.tokens_per_call, "same": same}


def mean_error(values: Any) -> tuple[float, float]:
    """Return the mean and its standard error."""
    values = np.asarray(values, float)
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
    return float(values.mean()), float(error)


def gap(row: Row, other: Row, field: str = "nats") -> tuple[float, float]:
    """Return the mean of paired differences, and its standard error."""
    return mean_error(np.asarray(row[field]) - np.asarray(other[field]))


def tables(config: Any, arms: Any, rows: dict[str, Row]) -> list[dict[str, Any]]:
    """Make a table of each part, of claims, and of bytes by length."""
    dense = rows[DENSE]
    lengths = sorted({config.length, *config.lengths})
    at = lengths.index(config.length)
    share = lambda row, kind, at: (
        row["kv_bytes"][kind][at] / dense["kv_bytes"][kind][at]
    )
    found = []
    parts = dict.fromkeys(arm["part"] for arm in arms.values() if arm["part"])
    for part in parts:
        lines = []
        for name in [DENSE, *(n for n, arm in arms.items() if arm["part"] == part)]:
            row = rows[name]
            nats, error = gap(row, dense)
            seeds = np.split(
                np.asarray(row["nats"]) - np.asarray(dense["nats"]), len(config.seeds)
            )
            window = row["arguments"].get("window", arms[name].get("window", "–"))
            lines.append(
                [
                    name,
                    f"{window}",
                    f"{nats:+.4f} ± {error:.4f}",
                    " ".join(f"{x.mean():+.3f}" for x in seeds),
                    "{:.3f} ± {:.3f}".format(*mean_error(row["right"])),
                    f"{row['slots']:.0f}",
                    f"{row['kv_bytes']['float32'][at] / 1024:.0f}",
                    *(f"{share(row, kind, at):.0%}" for kind in DTYPES),
                    f"{row['tree']:.2f}" if "tree" in row else "–",
                ]
            )
        heads = (
            *("arm", "window", "nats above dense", "by seed", "needle", "slots"),
            *("KiB", "of dense, float32", "of dense, bfloat16", "tree"),
        )
        found.append(table(part.capitalize(), heads, lines, NOTE))
    mean, error = mean_error(dense["nats"])
    same = [rows[name]["same"] for name in config.treed]
    found[0]["notes"] += [
        f"Dense: {mean:.4f} ± {error:.4f} nats; {len(dense['nats'])} windows, "
        f"{len(dense['right'])} needles. Texts of the tree that are plain decoding's "
        f"under the same policy: {sum(same)} of {len(same) * config.prompts}."
    ]
    found.append(_claims(config, rows, at))
    lines = [
        [
            name,
            *(f"{share(row, k, i):.1%}" for k in DTYPES for i in range(len(lengths))),
        ]
        for name, row in rows.items()
        if name != DENSE
    ]
    columns = [f"{kind}, {length:,}" for kind in DTYPES for length in lengths]
    about = (
        "Share of the dense cache's bytes in rows of so many tokens; arrays' shapes."
    )
    found.append(table("Bytes by length", ("arm", *columns), lines, about))
    return found


NOTE = (
    "nats: of a token, mean of paired differences by window ± its standard error; by "
    "seed: of its windows. needle: share of the answer's tokens. slots: of a layer, at "
    "an average judged token. KiB and shares: of a row while decoding plainly, with "
    "scales, positions and exact recent tokens. tree: tokens a call."
)


def _claims(config: Any, rows: dict[str, Row], at: int) -> dict[str, Any]:
    """Make the table of directions."""
    lines = []
    for better, worse in config.claims:
        more, error = gap(rows[worse], rows[better])
        holds = "yes" if more > 2 * error else "even"
        holds = "no" if more < -2 * error else holds
        sizes = [rows[x]["kv_bytes"]["float32"][at] for x in (better, worse)]
        needles = gap(rows[better], rows[worse], "right")
        lines.append(
            [
                f"{better} ≤ {worse}",
                f"{more:+.4f} ± {error:.4f}",
                holds,
                "{:+.3f} ± {:.3f}".format(*needles),
                f"{sizes[0] / sizes[1]:.2f}",
            ]
        )
    note = (
        "nats: the second arm's above the first's, paired; holds: *yes* if that is two "
        "standard errors above 0, *no* if below, else *even*. needle: first's share "
        "above the second's. bytes: the first's ÷ the second's, float32."
    )
    heads = ("direction, nats", "difference", "holds", "needle", "bytes")
    return table("Directions", heads, lines, note)


STAGE = Stage(run, "Caches that change values: {}", ())
