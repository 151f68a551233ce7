"""What exits that choose layers cost, in nats and in texts, beside sets of layers.

An arm says which layers run for each token of a row, and may be an exit that decodes.
All arms get the same cases: held-out windows whose first tokens are the prompt. Nats
are of the window's other tokens, by whole sequences in which a token passes by the
layers that are left out: as decoding computes them, see
tests/experiments/studies/test_layer_exits.py.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import decoding
from decoding import Method, Spec
from experiments.benchmarks import long_context, long_nats
from experiments.measurement.workbench import Model
from experiments.studies.search_tables import Row, pooled, table
from models import transformer
from models.errors import ConfigError
from models.predictors import layer_router
from models.surgery import lora
from training.objectives.language_models import next_token

Gates = Callable[[np.ndarray, np.random.Generator], np.ndarray]
"""(tokens int32[B, T], random numbers) -> bool[L, B, T]: which layers run."""


class Arm(NamedTuple):
    """A choice of layers.

    Attributes:
        gates: the layers that run.
        params: of the target; None: its own.
        exit: the same choice in decoding; None: the arm writes no text.
        routers: params of `exit`, if it needs any.
        draws: how often `gates` draws; figures are the draws' means.
    """

    gates: Gates
    params: Any = None
    exit: Spec | None = None
    routers: Any = None
    draws: int = 1


class Bench:
    """A target and its cases."""

    def __init__(
        self, config: Any, lm: Any, draft: Any = None, drafter: Method | None = None
    ):
        """Load nothing; `drafter` is the method whose texts are compared with plain."""
        self.config, self.lm, self.draft, self.drafter = config, lm, draft, drafter
        shape = lm.model.config
        self.depth, self.width = shape.n_layers, shape.d_model
        self._files = long_context.files(lm, config.data)
        self._dense: dict[int, tuple] = {}

        def graded(params: Any, tokens: Any, gates: Any) -> tuple:
            share = lambda i, x: gates[i].astype(jnp.float32)
            out: Any = transformer.forward(shape, params, tokens, share=share)
            nats = next_token.cross_entropy(out.logits[:, :-1], tokens[:, 1:])
            return nats, out.logits[:, :-1].argmax(-1)

        def states(params: Any, tokens: Any) -> Any:
            taps = tuple(range(self.depth))
            return transformer.forward(shape, params, tokens, taps=taps).hidden

        self._graded, self._states = jax.jit(graded), jax.jit(states)

    def every(self, tokens: np.ndarray, rng: Any = None) -> np.ndarray:
        """Return the gates of the whole model."""
        return np.ones((self.depth, *tokens.shape), bool)

    def constant(self, keeps: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Return gates of sets `keeps` bool[B or 1, L] that the text takes."""
        text = np.arange(tokens.shape[1]) >= self.config.prompt
        kept = np.broadcast_to(keeps, (len(tokens), self.depth)).T
        return kept[:, :, None] | ~text

    def fixed(self, layers: Sequence[int], params: Any = None) -> Arm:
        """Make the arm of one set of layers; the prompt takes all."""
        keeps = np.isin(np.arange(self.depth), list(layers))[None]
        return Arm(
            lambda tokens, rng: self.constant(keeps, tokens),
            params,
            Spec("exits/first"),
            layer_router.fixed(self.depth, self.width, layers),
        )

    def votes(self, params: Any, routers: Any, tokens: np.ndarray) -> np.ndarray:
        """Return bool[B, L]: the layers that each row's prompt asks for."""
        prompt = tokens[:, : self.config.prompt]
        states = self._states(params, prompt)
        odds = [
            layer_router.log_odds(routers, i, states[i][:, :-1])
            for i in range(self.depth)
        ]
        return np.asarray(jax.nn.sigmoid(jnp.stack(odds)).mean(-1) >= 0.5).T

    def random(
        self, counts: Callable[[np.ndarray], np.ndarray], params: Any, first: int = 0
    ) -> Arm:
        """Make the arm of random sets, a row's as large as `counts` [B] says.

        The `first` layers are in every set that is large enough.
        """

        def gates(tokens: np.ndarray, rng: np.random.Generator) -> np.ndarray:
            every = np.tile(np.arange(self.depth), (len(tokens), 1))
            rank = rng.permuted(every[:, first:], axis=1)
            rank = np.concatenate([every[:, :first], rank], 1)
            return self.constant(rank < counts(tokens)[:, None], tokens)

        return Arm(gates, params, draws=self.config.draws)

    def tokens(self, seed: int) -> np.ndarray:
        """Return the windows of a seed, int32[cases, prompt + new]."""
        c = self.config
        length, new = c.prompt + c.new, c.new
        cases = long_nats.cases(self._files, length, c.cases, seed, new)
        return np.asarray([[*case.prompt, *case.expected] for case in cases], np.int32)

    def grade(self, params: Any, tokens: np.ndarray, gates: np.ndarray) -> tuple:
        """Return nats and likeliest tokens [B, new] of the texts behind the prompts."""
        nats, best = jax.device_get(self._graded(params, tokens, gates))
        first = self.config.prompt - 1
        return nats[:, first:], best[:, first:]

    def dense(self, seed: int) -> tuple:
        """Return (tokens, likeliest tokens, greedy texts) of the whole model."""
        if seed not in self._dense:
            tokens = self.tokens(seed)
            _, best = self.grade(self.lm.params, tokens, self.every(tokens))
            out = self.written(Method(), Arm(self.every), tokens)
            self._dense[seed] = tokens, best, out.tokens
        return self._dense[seed]

    def written(self, method: Method, arm: Arm, tokens: np.ndarray) -> Any:
        """Decode greedily behind the prompts; return the `Output`."""
        lm, c = self.lm, self.config
        if arm.params is not None:
            lm = Model(lm.model, arm.params, lm.tokenizer)
        beside = {} if arm.routers is None else {"exits": arm.routers}
        if method.drafter is not None and "draft" in method.needs:
            beside["draft"] = self.draft
        prompts = [row[: c.prompt].tolist() for row in tokens]
        fields: dict[str, Any] = {"width": "paper"}
        if beside:
            fields["drafts"] = beside
        return decoding.generate(lm, prompts, method, c.new, **fields)

    def row(self, arm: Arm, seed: int, drafted: bool = False) -> Row:
        """Measure an arm on a seed's cases; lists are by case."""
        tokens, due, texts = self.dense(seed)
        params = self.lm.params if arm.params is None else arm.params
        draws = []
        for draw in range(arm.draws):
            gates = arm.gates(tokens, np.random.default_rng([seed, draw]))
            nats, best = self.grade(params, tokens, gates)
            first = self.config.prompt - 1
            layers = gates[:, :, first:-1].sum(0).mean(-1)
            draws.append((nats.mean(-1), (best == due).mean(-1), layers))
        nats, agree, layers = np.asarray(draws).mean(0)
        row = {
            "nats": nats.tolist(),
            "agree": agree.tolist(),
            "layers": layers.tolist(),
        }
        row["draw_nats"] = [float(d[0].mean()) for d in draws]
        if arm.exit is None:
            return row
        out = self.written(Method(exit=arm.exit), arm, tokens)
        shared = [parting(a, b) / len(b) for a, b in zip(out.tokens, texts)]
        row.update(
            shared=shared,
            same=[float(list(a) == list(b)) for a, b in zip(out.tokens, texts)],
            text_nats=self.text_nats(tokens, out.tokens),
            evals=out.stats.layer_evals,
            ran=out.stats.layers_run,
        )
        if drafted and self.drafter is not None:
            d = self.drafter
            method = Method(d.drafter, d.verifier, topology=d.topology, exit=arm.exit)
            tree = self.written(method, arm, tokens)
            row.update(
                tree_same=[
                    float(list(a) == list(b)) for a, b in zip(tree.tokens, out.tokens)
                ],
                tree_tokens=tree.stats.tokens_per_call,
                tree_evals=tree.stats.layer_evals,
                tree_ran=tree.stats.layers_run,
                guarantee=tree.guarantee,
            )
        return row

    def text_nats(self, tokens: np.ndarray, texts: Sequence) -> list[float]:
        """Return the whole target's mean nats of a token of each text."""
        c = self.config
        written = tokens.copy()
        for row, text in zip(written, texts):
            row[c.prompt : c.prompt + len(text)] = text
        nats, _ = self.grade(self.lm.params, written, self.every(written))
        return [float(n[: len(text)].mean()) for n, text in zip(nats, texts)]


def parting(text: Sequence[int], other: Sequence[int]) -> int:
    """Count the tokens before two texts part."""
    differ = [i for i, (a, b) in enumerate(zip(text, other)) if a != b]
    return differ[0] if differ else min(len(text), len(other))


def changed(lm: Any, changes: Any) -> Any:
    """Return the target's params with low-rank changes."""
    return lora.merged(lm.params, changes)


def error(x: np.ndarray) -> float:
    """Return the standard error of a mean."""
    return float(x.std(ddof=1) / np.sqrt(len(x))) if len(x) > 1 else 0.0


def quality(title: str, rows: Mapping[str, Sequence[Row]], dense: str) -> dict:
    """Tabulate arms: layers, nats above the whole model's, and their texts."""
    base = pooled(rows[dense], "nats")
    lines = []
    for name, own in rows.items():
        gap = pooled(own, "nats") - base
        of_text = ["–"] * 4
        if "evals" in own[0]:
            mean = lambda field, own=own: float(np.mean([r[field] for r in own]))
            of_text = [
                f"{100 * pooled(own, 'shared').mean():.0f} %",
                f"{pooled(own, 'text_nats').mean():.3f}",
                f"{mean('evals'):.2f}",
                f"{mean('ran'):.2f}",
            ]
        lines.append(
            [
                name,
                f"{pooled(own, 'layers').mean():.2f}",
                f"{(base + gap).mean():.3f}",
                f"{gap.mean():+.3f} ± {error(gap):.3f}",
                f"{100 * pooled(own, 'agree').mean():.0f} %",
                *of_text,
            ]
        )
    heads = (
        "layers of",
        "layers a token",
        "nats",
        "above all layers",
        "agree",
        "text shared",
        "nats of the text",
        "layer evals",
        "layers run",
    )
    return table(title, heads, lines, QUALITY)


QUALITY = (
    "nats: of held-out tokens, each after those before it; ±: standard error of the "
    "paired difference over cases. agree: the likeliest token is that of all layers. "
    "text shared: of a greedy text, before it parts from that of all layers. nats of "
    "the text: by the whole untrained target. layer evals, layers run: a new token's, "
    "as decoding counts them."
)


def directions(
    title: str,
    pairs: Sequence[tuple[str, str]],
    rows: Mapping[str, Sequence[Row]],
    seeds: Sequence[int],
) -> dict:
    """Compare pairs (better, worse) in nats on the same cases, also seed by seed."""
    lines = []
    for better, worse in pairs:
        gap = pooled(rows[worse], "nats") - pooled(rows[better], "nats")
        each = [
            np.mean(b["nats"]) - np.mean(a["nats"])
            for a, b in zip(rows[better], rows[worse])
        ]
        evals = [pooled(rows[name], "layers").mean() for name in (better, worse)]
        verdict = "yes" if gap.mean() > 2 * error(gap) else "even"
        verdict = "no" if gap.mean() < -2 * error(gap) else verdict
        lines.append(
            [
                f"{better} ≥ {worse}",
                f"{evals[0]:.2f} / {evals[1]:.2f}",
                f"{gap.mean():+.3f} ± {error(gap):.3f}",
                " ".join(f"{x:+.3f}" for x in each),
                verdict,
            ]
        )
    heads = ("direction", "layers a token", "nats less", "by seed", "holds")
    note = (
        "nats less: the second's nats less the first's, in pairs, ± standard error "
        f"over the cases of {len(seeds)} seeds; even: within two of them."
    )
    return table(title, heads, lines, note)


def drafts(title: str, rows: Mapping[str, Sequence[Row]]) -> dict:
    """Tabulate drafts under an exit: their texts beside plain decoding's, and calls."""
    lines = []
    for name, own in rows.items():
        tried = [r for r in own if "tree_same" in r]
        if not tried:
            continue
        mean = lambda field, tried=tried: float(np.mean([r[field] for r in tried]))
        same = pooled(tried, "tree_same")
        lines.append(
            [
                name,
                f"{int(same.sum())} of {len(same)}",
                f"{mean('tree_tokens'):.2f}",
                f"{mean('tree_evals'):.2f}",
                f"{mean('evals'):.2f}",
                f"{mean('tree_ran'):.2f}",
                tried[0]["guarantee"],
            ]
        )
    heads = (
        "layers of",
        "same text",
        "tokens a call",
        "layer evals",
        "of plain",
        "layers run",
        "guarantee",
    )
    note = (
        "Drafts under an exit beside plain decoding under it. layers run: a token's, "
        "those of a call shared by the tokens that it committed; all rows are decoded "
        "together, so that a call runs what any row needs."
    )
    return table(title, heads, lines, note)


def check(config: Any) -> None:
    """Raise ConfigError for sizes that would fail later."""
    for name in ("cases", "draws", "new"):
        if config[name] < 1:
            raise ConfigError(f"config.{name}={config[name]}: use 1 at least")
    if config.prompt < 2:
        raise ConfigError(f"config.prompt={config.prompt}: use 2 tokens at least")
    if not config.seeds:
        raise ConfigError("config.seeds=(): use one at least")
