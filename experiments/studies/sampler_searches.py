"""Parts of the study `samplers` that are searches, or change the prompt's cache."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from ml_collections import ConfigDict

import decoding
from decoding import Method, Spec
from decoding.loops import prefill
from decoding.search import hidden_state_optimisation as hso
from decoding.text_lookup import suffix_array
from experiments.studies import sampler_texts
from experiments.studies.sampler_texts import Column, Direction, Part, Study, Text
from experiments.trainings import adadec_threshold
from models.predictors import value_predictor

NATS = Column("nats", "nats a token")
REPEATED = Column("repeated", "repeated 4-grams")


def adadec(study: Study) -> dict[str, Any]:
    """Compare the search's choices at pauses with the most probable tokens."""
    c, lm = study.config, study.model("code_model")
    shares: dict[str, list] = {"greedy": [], "AdaDec": []}
    places = changed = 0
    for number in range(c.seeds):
        settings = ConfigDict({**c.adadec.to_dict(), "seed": c.seed + number})
        found = adadec_threshold.choices(settings, lm, study.folder, c.adadec.threshold)
        places, changed = (
            places + found.places,
            changed + int((found.greedy != found.search).sum()),
        )
        shares["greedy"] += (found.greedy == found.true).astype(float).tolist()
        shares["AdaDec"] += (found.search == found.true).astype(float).tolist()
    arms = {name: {"right": values} for name, values in shares.items()}
    return {"arms": arms, "places": places, "changed": changed}


ADADEC = Part(
    "AdaDec at pauses of held-out code",
    ("code_model",),
    (),
    adadec,
    (Column("right", "the true token is chosen"),),
    lambda config: [
        Direction("oftener right than greedy", "right", "AdaDec", "greedy")
    ],
    lambda found: [
        f"{len(found['arms']['AdaDec']['right'])} pauses of {found['places']} places; "
        f"the search changes the token at {found['changed']} of them.",
    ],
)


def cntp(study: Study) -> dict[str, Any]:
    """Sample plainly, and by trials."""
    c = study.config
    lm, prompts = study.model("text_model"), study.novels(c.prompt_tokens)
    search = Spec("search/cntp", trials=c.cntp.trials, longest=c.cntp.longest)
    forms: dict[str, Any] = {"sampling": None, "CNTP": Method(search=search)}
    arms = {}
    for name, method in forms.items():
        settings = {"temperature": c.cntp.temperature, "top_p": 0.9}
        texts = study.generate(lm, prompts, c.cntp.new, method=method, **settings)
        arm = sampler_texts.figures(texts, "repeated", "nodes")
        size = c.prompt_tokens + c.cntp.new
        arm["nats"] = sampler_texts.nats(lm, texts, size, c.batch)
        arms[name] = arm
    return {"arms": arms}


CNTP = Part(
    "CNTP",
    ("text_model",),
    ("english_novels",),
    cntp,
    (NATS, REPEATED, Column("nodes", "nodes a token", ".2f")),
    lambda config: [Direction("lower loss than sampling", "nats", "sampling", "CNTP")],
    lambda found: ["Both at one temperature, top-p 0.9; nats: under the raw law."],
)


def superposed(study: Study) -> dict[str, Any]:
    """Write k drafts at once, and k texts by nucleus sampling."""
    c, lm = study.config, study.model("text_model")
    prompts = study.novels(c.superposed.prompt)
    place = study.folder / "ngrams"
    store = suffix_array.build(_taken(study, c.superposed.tokens))
    suffix_array.save(store, place)
    arms = {}
    most = max(c.superposed.drafts)
    settings = {"temperature": 1.0, "top_p": c.superposed.top_p, "n": most}
    found, calls = _several(study, lm, prompts, settings)
    for k in c.superposed.drafts:
        arms[f"nucleus, {k}"] = _best([row[:k] for row in found], calls)
        search = Spec("search/superposed", drafts=k, datastore=str(place))
        settings = {"method": Method(search=search), "n": k}
        arms[f"superposed, {k}"] = _best(*_several(study, lm, prompts, settings))
    return {"arms": arms}


def _taken(study: Study, most: int) -> list[list[int]]:
    """Take training chapters, `most` tokens of them, and as many of articles."""
    c, taken = study.config, []
    for part in (c.novels, c.articles):
        room = most // 2
        for text in study.encoded(part, "train"):
            taken.append(text[:room].tolist())
            room -= len(taken[-1])
            if room <= 0:
                break
    return taken


def _several(
    study: Study, lm: Any, prompts: Sequence[list[int]], settings: dict
) -> tuple[list[list[float | None]], list[float]]:
    """Decode several texts a prompt: their nats, and calls a token of each draft."""
    c = study.config
    n, size = settings["n"], min(c.batch, len(prompts))
    texts: list[Text] = []
    calls: list[float] = []
    for first in range(0, len(prompts), size):
        rows = [min(first + i, len(prompts) - 1) for i in range(size)]
        out = decoding.generate(
            lm,
            [prompts[row] for row in rows],
            max_new_tokens=c.superposed.new,
            seed=[study.noise(row) for row in rows],
            width="paper",
            **settings,
        )
        run = out.stats.nodes_run
        run = out.stats.target_calls.reshape(size, -1).sum(1) if run is None else run
        for i in range(min(size, len(prompts) - first)):
            own = out.tokens[i] if n > 1 else [out.tokens[i]]
            texts += [Text(prompts[rows[i]], t, [], 0.0, None) for t in own]
            calls.append(float(run[i]) / max(sum(map(len, own)), 1))
    longest = c.superposed.prompt + c.superposed.new
    nats = sampler_texts.nats(lm, texts, longest, c.batch)
    return [nats[i : i + n] for i in range(0, len(nats), n)], calls


def _best(nats: Sequence[list], calls: Sequence[float]) -> dict[str, list]:
    known = [[x for x in row if x is not None] for row in nats]
    return {
        "best": [min(row, default=None) for row in known],
        "mean": [float(np.mean(row)) if row else None for row in known],
        "calls": list(calls),
    }


def of_superposed(config: Any) -> list[Direction]:
    drafts = config.superposed.drafts
    one, few, most = f"nucleus, {drafts[0]}", drafts[len(drafts) // 2], drafts[-1]
    own = lambda k: f"superposed, {k}"
    return [
        *(
            Direction(
                "best draft below as many nucleus texts",
                "best",
                f"nucleus, {k}",
                own(k),
            )
            for k in drafts[1:]
        ),
        Direction("best draft below a nucleus text", "best", one, own(few)),
        Direction("mean draft below a nucleus text", "mean", one, own(few)),
        Direction("worse with k", "mean", own(most), own(drafts[1])),
        *(
            Direction("fewer calls a draft's token", "calls", f"nucleus, {k}", own(k))
            for k in drafts[1:]
        ),
    ]


SUPERPOSED = Part(
    "Superposed Decoding",
    ("text_model",),
    ("english_novels", "wikitext2"),
    superposed,
    (
        *(Column("best", "best, nats a token"), Column("mean", "mean")),
        Column("calls", "calls a token of a draft"),
    ),
    of_superposed,
    lambda found: [
        "Behind the name: k drafts, or k independent texts. nats: under the target's "
        "law of each text alone. n-grams of training chapters and articles.",
    ],
)


@functools.cache
def _states(config: Any) -> Any:
    return sampler_texts.forward(config, ("norm",))


def head(study: Study) -> tuple[dict[str, Array], float]:
    """Train a value head to tell chapters from beams' texts, at every token.

    Returns:
        Its params, and the share of tokens of other passages that it is right at.
    """
    c, lm = study.config, study.model("text_model")
    start, new = c.prompt_tokens, c.beams.new
    passages = study.novels(start + new, "train")
    prompts = [passage[:start] for passage in passages]
    beams = Method(search=Spec("search/beam", width=c.beams.width))
    texts = study.generate(lm, prompts, new, method=beams)
    states, labels, of = [], [], []
    for i, (passage, text) in enumerate(zip(passages, texts)):
        for label, tokens in ((1.0, passage[start:]), (0.0, text.tokens)):
            row = np.zeros((1, start + new), np.int32)
            row[0, : start + len(tokens)] = [*passage[:start], *tokens]
            hidden = _states(lm.model.config)(lm.params, row).hidden["norm"][0]
            states.append(np.asarray(hidden[start : start + len(tokens)]))
            labels += [label] * len(tokens)
            of += [i] * len(tokens)
    x, y = np.concatenate(states), np.asarray(labels, np.float32)
    fitted = np.asarray(of) % 4 != 3  # a fourth of the passages is for the test
    if fitted.all():
        fitted = np.arange(len(y)) % 4 != 3
    params = fit(x[fitted], y[fitted], c.beams.decay)
    value = np.asarray(value_predictor.value(params, jnp.asarray(x[~fitted])))
    return params, float(((value > 0) == (y[~fitted] > 0.5)).mean())


def fit(x: np.ndarray, y: np.ndarray, decay: float) -> dict[str, Array]:
    """Fit a logistic regression with a penalty `decay` |w|² / 2 by L-BFGS."""
    scale = x.std(0) + 1e-6
    inputs, labels = jnp.asarray(x / scale), jnp.asarray(y)

    def loss(params: dict) -> Array:
        z = inputs @ params["weight"] + params["bias"]
        bce = jax.nn.softplus(jnp.where(labels > 0.5, -z, z)).mean()
        return bce + decay * (params["weight"] ** 2).sum() / 2

    params = {"weight": jnp.zeros(x.shape[1]), "bias": jnp.zeros(())}
    solver: Any = optax.lbfgs()

    @jax.jit
    def step(params: dict, state: Any) -> tuple:
        value, slopes = optax.value_and_grad_from_state(loss)(params, state=state)
        updates, state = solver.update(
            slopes, state, params, value=value, grad=slopes, value_fn=loss
        )
        return optax.apply_updates(params, updates), state

    state = solver.init(params)
    for _ in range(60):
        params, state = step(params, state)
    return {"weight": params["weight"] / scale, "bias": params["bias"]}


def conditional_beam(study: Study) -> dict[str, Any]:
    """Search by beams, with and without a classifier of natural text."""
    c, lm = study.config, study.model("text_model")
    params, right = head(study)
    prompts = study.novels(c.prompt_tokens)
    arms = {}
    for weight in (0.0, *c.beams.weights):
        search = Spec("search/conditional_beam", width=c.beams.width, weight=weight)
        texts = study.generate(
            *(lm, prompts, c.beams.new),
            method=Method(search=search),
            reward=Spec("rewards/value_head"),
            drafts={"reward": params},
        )
        names = ("repeated", "loops", "distinct", "total")
        arms[_weight(weight)] = sampler_texts.figures(texts, *names)
    return {"arms": arms, "right": right}


def _weight(weight: float) -> str:
    return f"weight {weight:g}" if weight else "beams"


CONDITIONAL_BEAM = Part(
    "Conditional beam search",
    ("text_model",),
    ("english_novels",),
    conditional_beam,
    (
        *(REPEATED, Column("loops", "in loops")),
        *(Column("distinct", "distinct 2-grams"), Column("total", "log p", ".2f")),
    ),
    lambda config: [
        Direction(claim, figure, "beams", _weight(weight))
        for weight in config.beams.weights
        for claim, figure in (
            ("degenerates less than beams", "repeated"),
            ("fewer loops than beams", "loops"),
        )
    ],
    lambda found: [
        "The classifier tells training chapters from beams' texts by the state at each "
        f"token; on other passages it is right at {100 * found['right']:.1f} % of the "
        "tokens, half of which are of each kind.",
    ],
)


def hidden_state_optimisation(study: Study) -> dict[str, Any]:
    """Read held-out passages window by window, with steps of several rates."""
    c, lm = study.config, study.model("text_model")
    size, window = c.hso.windows * c.hso.window + 1, c.hso.window
    passages = study.novels(size)
    part = hso.prefill(lm.model, steps=c.hso.steps, window=window)
    weights: Any = {"target": lm.params}
    none = jnp.zeros((1, 0), jnp.int32)

    @jax.jit
    def step(weights: Any, state: Any, cache: Any, tokens: Array) -> tuple:
        length = jnp.asarray([size])
        block, _, count = prefill.chunk(tokens, length, cache, window)
        ahead = jnp.minimum(cache.length[0] + 1 + jnp.arange(window), size - 1)
        rest = (block, tokens[:, ahead], count)
        of = lambda cache: hso.loss(
            hso.states(cache), lm.model, weights["target"], cache, *rest
        )
        before = of(cache)
        cache, state = part.read(weights, state, cache, *rest)
        after = of(cache)
        _, cache = lm.model(weights["target"], cache, block)
        cache = cache.commit(none, count - 1, linear=True)
        return state, cache, before / window, after / window

    arms: dict[str, Any] = {}
    for rate in (0.0, *c.hso.rates):
        arm: dict[str, list] = {"before": [], "after": []}
        for passage in passages:
            cache = lm.model.init_cache(1, size + window)
            state, losses = part.init(jnp.float32(rate), cache), []
            for _ in range(c.hso.windows):
                state, cache, *pair = step(
                    weights, state, cache, jnp.asarray([passage])
                )
                losses.append([float(x) for x in pair])
            # The first window has no state behind it that could learn.
            before, after = np.mean(losses[1:], 0)
            arm["before"].append(float(before))
            arm["after"].append(float(after))
        arms[_rate(rate)] = arm
    return {"arms": arms}


def _rate(rate: float) -> str:
    return f"rate {rate:g}"


HSO = Part(
    "Hidden-state optimisation on held-out chapters",
    ("text_model",),
    ("english_novels",),
    hidden_state_optimisation,
    (Column("after", "window, after its step"), Column("before", "before its step")),
    lambda config: [
        direction
        for rate in config.hso.rates
        for direction in (
            Direction("the window's loss falls", "after", _rate(0.0), _rate(rate)),
            Direction(
                "so does that of windows not yet seen",
                *("before", _rate(0.0), _rate(rate)),
            ),
        )
    ],
    lambda found: [
        "nats a token, of all windows but the first. before its step: behind what the "
        "earlier windows changed, as a text would be decoded.",
    ],
)
