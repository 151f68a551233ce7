"""Parts of the study `samplers` that mix or contrast the target with another law.

GeDi (two class-conditional models), USCD (a lame prompt) and kNN-LM (a datastore).
"""

import ast
import functools
import itertools
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from decoding import Spec, base, vocab
from decoding.text_lookup import key_store
from decoding.transforms import knn_lm as mixture
from decoding.transforms import uscd as contrast
from experiments import knn_datastore
from experiments.studies import sampler_texts
from experiments.studies.sampler_texts import Column, Direction, Part, Study
from models import storage
from models.base import FFN_INPUT
from models.errors import ConfigError
from models.text import row_files

BITS = Column("bits", "bits a token")
GATE = 0.39  # sum of squares up to which USCD contrasts, its default


class Judge:
    """Tell two classes of text by their tokens: naive Bayes on words and pairs."""

    def __init__(self, first: Sequence[np.ndarray], second: Sequence[np.ndarray]):
        self.counts: tuple[dict, dict] = ({}, {})
        for counts, texts in zip(self.counts, (first, second)):
            for text in texts:
                for gram in _grams(text):
                    counts[gram] = counts.get(gram, 0) + 1
        self.totals = [sum(counts.values()) for counts in self.counts]
        self.kinds = len(set(self.counts[0]) | set(self.counts[1])) + 1

    def odds(self, text: Sequence[int]) -> float:
        """Return the log-odds of the first class."""
        shares = [
            np.log([counts.get(gram, 0) + 1 for gram in _grams(text)])
            - np.log(total + self.kinds)
            for counts, total in zip(self.counts, self.totals)
        ]
        return float((shares[0] - shares[1]).sum())


def _grams(text: Iterable[int]) -> list[tuple[int, ...]]:
    tokens = list(map(int, text))
    return [*((token,) for token in tokens), *itertools.pairwise(tokens)]


def gedi(study: Study) -> dict[str, Any]:
    """Guide texts to articles, and let a judge count them."""
    c, lm, classes = study.config, study.model("text_model"), study.model("class_model")
    sizes = [x.model.config.vocab_size for x in (classes, lm)]
    if sizes[0] != sizes[1]:
        raise ConfigError(
            f"config.class_model={c.class_model!r} has {sizes[0]} tokens and config."
            f"text_model {sizes[1]}: train it with the text model's tokenizer"
        )
    groups = {
        name: [*study.encoded(part, "validation")] for name, part in c.classes.items()
    }
    (wanted, own), (other, others) = groups.items()
    judge = Judge(own[::2], others[::2])
    cut = lambda texts: [t[: c.gedi.new] for t in texts[1::2] if len(t) >= c.gedi.new]
    right = [judge.odds(t) > 0 for t in cut(own)]
    right += [judge.odds(t) <= 0 for t in cut(others)]
    prompts = study.novels(c.gedi.prompt)
    streams = {}
    for name, which in (("desired", wanted), ("anti", other)):
        code = lm.tokenizer.encode(c.classes[which].before)
        coded = [[*code, *prompt] for prompt in prompts]
        streams[name] = base.Stream(classes.model, "classes", coded)
    arms = {}
    for omega in (0.0, *c.gedi.omegas):
        spec = Spec("transforms/gedi", omega=omega, filter_p=0.8 if omega else 0.0)
        texts = study.generate(
            *(lm, prompts, c.gedi.new, streams),
            temperature=1.0,
            transforms=[spec],
            drafts={"classes": classes},
        )
        arm = sampler_texts.figures(texts, "bits", "repeated")
        odds = [judge.odds(text.tokens) for text in texts]
        arm["share"] = [float(x > 0) for x in odds]
        arm["odds"] = [x / max(len(t.tokens), 1) for x, t in zip(odds, texts)]
        arms[_omega(omega)] = arm
    return {
        "arms": arms,
        "class": wanted,
        "judge": [float(np.mean(right)) if right else 0.0, len(right)],
    }


def _omega(omega: float) -> str:
    return f"ω = {omega:g}" if omega else "the model's law"


def of_gedi(config: Any) -> list[Direction]:
    arms = [_omega(omega) for omega in (0.0, *config.gedi.omegas)]
    pairs = [*itertools.pairwise(arms), (arms[0], arms[-1])]
    return [
        Direction(f"{words} rises with ω", figure, more, less)
        for figure, words in (("share", "class share"), ("bits", "perplexity"))
        for less, more in pairs
    ]


GEDI = Part(
    "GeDi, T = 1",
    ("text_model", "class_model"),
    ("english_novels", "wikitext2"),
    gedi,
    (
        *(Column("share", "judged so"), Column("odds", "log-odds a token")),
        *(BITS, Column("repeated", "repeated 4-grams")),
    ),
    of_gedi,
    lambda found: [
        f"Wanted class: {found['class']}. The judge is naive Bayes on tokens and pairs "
        "of half the held-out paragraphs; on the other half, cut to the texts' length, "
        f"it is right at {100 * found['judge'][0]:.1f} % of {found['judge'][1]}. bits: "
        "under the target.",
    ],
)


def lame(prompt: str) -> str:
    """Return a HumanEval prompt without its examples of inputs and outputs."""
    lines, inside = [], False
    for line in prompt.splitlines(keepends=True):
        text = line.strip()
        inside = (inside or text.startswith(">>>")) and bool(text)
        inside &= not text.startswith(('"""', "'''"))
        if not inside:
            lines.append(line)
    return "".join(lines)


def items(study: Study) -> list[dict[str, Any]]:
    """Read HumanEval's tasks with examples: tokens of prompt, lame prompt and body."""
    c = study.config
    lm, folder = study.model("code_model"), storage.path(c.data) / "humaneval"
    found = []
    for path in sorted(folder.glob("*.jsonl*")):
        for _, line in row_files.lines(path):
            task = json.loads(line)
            # The official harness strips prompts: a line break and the indentation
            # behind it are often one token.
            prompt = task["prompt"].rstrip()
            texts = prompt, lame(prompt), "\n" + task["canonical_solution"]
            tokens = dict(
                zip(("prompt", "lame", "body"), map(lm.tokenizer.encode, texts))
            )
            size = len(tokens["prompt"]) + len(tokens["body"])
            if texts[0] != texts[1] and size <= c.uscd.longest:
                found.append({**tokens, "text": texts[0]})
    if len(found) < c.prompts:
        raise ConfigError(
            f"{folder} has {len(found)} tasks with examples of at most config.uscd."
            f"longest={c.uscd.longest} tokens, config.prompts={c.prompts}: lower it"
        )
    return found


def laws(transform: Any, logits: Array, other: Array, stream: str) -> Array:
    """Return the transform's laws of N nodes beside a stream's: float32[N, V]."""
    state = transform.init(jnp.zeros(1, jnp.int32), jnp.int32(1))
    apply = jax.vmap(lambda z, aux: transform.apply(state, z, {stream: aux}))
    return vocab.log_softmax(apply(logits, other))


def bodies(study: Study, tasks: Sequence[dict]) -> dict[str, Any]:
    """Score the reference bodies under the laws of a standard prompt and of USCD."""
    c, lm = study.config, study.model("code_model")
    forms = {"plain": None, "USCD": contrast.transform()}
    forms["always contrasted"] = contrast.transform(certainty=1.0)
    run = sampler_texts.forward(lm.model.config)

    @jax.jit
    def scored(standard: Array, other: Array, true: Array) -> Any:
        made = {
            name: vocab.log_softmax(standard)
            if form is None
            else laws(form, standard, other, "lame")
            for name, form in forms.items()
        }
        true_of = {name: vocab.at(law, true) for name, law in made.items()}
        right = {name: vocab.argmax(law) == true for name, law in made.items()}
        p = vocab.softmax(standard)
        return true_of, right, (p * p).sum(-1)

    arms: dict[str, Any] = {
        name: {"body": [], "lost": [], "right": []} for name in forms
    }
    gates = []
    most = c.uscd.longest
    for task in tasks:
        rows = np.zeros((2, most), np.int32)
        for row, name in zip(rows, ("prompt", "lame")):
            whole = [*task[name], *task["body"]]
            row[: len(whole)] = whole
        logits = np.asarray(run(lm.params, rows).logits)
        size = len(task["body"])
        parts = np.zeros((2, most, logits.shape[-1]), np.float32)
        for part, own, name in zip(parts, logits, ("prompt", "lame")):
            part[:size] = own[len(task[name]) - 1 :][:size]
        true = np.zeros(most, np.int32)
        true[:size] = task["body"]
        given, right, squares = jax.tree.map(np.asarray, scored(*parts, true))
        given, right = ({k: x[:size] for k, x in y.items()} for y in (given, right))
        known = np.all([np.isfinite(x) for x in given.values()], 0)
        for name, arm in arms.items():
            mean = float(given[name][known].mean()) if known.any() else None
            arm["body"].append(mean)
            arm["lost"].append(float(np.isneginf(given[name]).mean()))
            arm["right"].append(float(right[name].mean()))
        gates.append(float((squares[:size] <= GATE).mean()))
    return {"arms": arms, "gate": float(np.mean(gates))}


def parses(prompt: str, text: str) -> bool:
    """Return whether a prompt with the body that a text begins with is Python.

    The body ends before the first line that is not indented; without such a line the
    last one may be cut, and is left out. It holds a statement or more.
    """
    lines = text.split("\n")
    end = next((i for i, x in enumerate(lines) if re.match(r"\S", x) and i), None)
    body = lines[:end] if end is not None else lines[:-1]
    try:
        tree = ast.parse(prompt + "\n".join(body) + "\n")
    except (SyntaxError, ValueError):
        return False
    count = lambda tree: sum(1 for _ in ast.walk(tree))
    return count(tree) > count(ast.parse(prompt))


def uscd(study: Study) -> dict[str, Any]:
    """Score reference bodies, and sample bodies of as many tasks as there are texts."""
    c, lm = study.config, study.model("code_model")
    tasks = items(study)
    found = bodies(study, tasks)
    chosen = [tasks[i % len(tasks)] for i in range(study.count)]
    prompts = [task["prompt"] for task in chosen]
    stream = base.Stream(lm.model, "target", [task["lame"] for task in chosen])
    forms: dict[str, dict[str, Any]] = {
        "plain": {},
        "USCD": {
            "streams": {"lame": stream},
            "transforms": [Spec("transforms/uscd")],
        },
    }
    for name, form in forms.items():
        settings: dict[str, Any] = {"temperature": 0.8, "top_p": 0.95}
        texts = study.generate(lm, prompts, c.uscd.new, **settings, **form)
        found["arms"][name]["parses"] = [
            float(parses(task["text"], lm.tokenizer.decode(text.tokens)))
            for task, text in zip(chosen, texts)
        ]
    return {**found, "tasks": len(tasks)}


USCD = Part(
    "USCD on HumanEval's tasks",
    ("code_model",),
    ("humaneval",),
    uscd,
    (
        *(Column("body", "log p of a token"), Column("right", "best is right")),
        *(Column("lost", "given no chance"), Column("parses", "parse")),
    ),
    lambda config: [
        Direction("likelier reference bodies", "body", "USCD", "plain"),
        Direction("the best token is oftener right", "right", "USCD", "plain"),
        Direction("more texts parse", "parses", "USCD", "plain"),
    ],
    lambda found: [
        f"{found['tasks']} tasks with examples. log p: nats, mean over the tokens of "
        "the reference body that no arm gives the probability 0; given no chance: the "
        "share of those with it. The gate contrasts at "
        f"{100 * found['gate']:.1f} % of the tokens. parse: bodies sampled at T = 0.8, "
        "top-p 0.95.",
    ],
)


def datastore(study: Study) -> key_store.Store:
    """Load the datastore of training articles; make it first if it is missing."""
    c, lm = study.config, study.model("text_model")
    place = study.folder / "knn_store"
    if not (place / key_store.META).exists():
        texts = (text.tolist() for text in study.encoded(c.articles, "train"))
        chosen = knn_datastore.taken(texts, c.knn.entries)
        keys, values = knn_datastore.entries(lm, chosen, c.knn.window)
        key_store.save(place, lm, keys, values, c.text_model)
    return key_store.load(place, lm, c.knn.neighbours)


def knn_lm(study: Study) -> dict[str, Any]:
    """Mix the law of held-out articles with neighbours; then let both write on."""
    c, lm = study.config, study.model("text_model")
    store = datastore(study)
    pieces, derived = store.drafts[key_store.NAME], store.streams[key_store.NAME]
    held = [*study.encoded({**c.articles, "files": c.knn.held}, "")]
    new, size = c.knn.new, c.knn.prompt + c.knn.new
    passages = study.passages(held, size)
    run = sampler_texts.forward(lm.model.config, (FFN_INPUT,))

    @functools.partial(jax.jit, static_argnums=2)
    def read(states: Array, logits: Array, weights: tuple) -> Any:
        near = derived.logits(pieces, {FFN_INPUT: states[None]})[0]
        law = vocab.log_softmax(logits)
        of = lambda weight: laws(mixture.transform(weight), law, near, key_store.NAME)
        return jnp.stack([law, *map(of, weights)]), vocab.entropy(near)

    weights = tuple(c.knn.weights)
    arms: dict[str, Any] = {_weight(w): {"nats": []} for w in (0.0, *weights)}

    def laws_of(text: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        row = np.zeros((1, size), np.int32)
        row[0, : len(text)] = text
        out = run(lm.params, row)
        places = slice(c.knn.prompt - 1, size - 1)
        laws, entropy = read(
            out.hidden[FFN_INPUT][0, places], out.logits[0, places], weights
        )
        true = jnp.broadcast_to(row[0, c.knn.prompt :], laws.shape[:2])
        return np.asarray(vocab.at(laws, true)), np.asarray(entropy)

    growth: dict[str, list[float | None]] = {"human text": [], "own text": []}
    for passage in passages:
        given, entropy = laws_of(passage)
        for arm, nats in zip(arms.values(), -given.mean(-1)):
            arm["nats"].append(float(nats))
        growth["human text"].append(slope(entropy, new))
    texts = study.generate(
        *(lm, [p[: c.knn.prompt] for p in passages], new, store.streams),
        temperature=1.0,
        top_p=c.knn.top_p,
        transforms=[Spec("transforms/knn_lm", weight=c.knn.written)],
        drafts=store.drafts,
    )
    for text in texts:
        _, entropy = laws_of([*text.prompt, *text.tokens])
        growth["own text"].append(slope(entropy, len(text.tokens)))
    arms |= {name: {"slope": slopes} for name, slopes in growth.items()}
    return {"arms": arms, "keys": store.about["tokens"]}


def slope(entropy: np.ndarray, count: int) -> float | None:
    """Return the least-squares rise of the first `count` entropies, per 100 tokens."""
    if count < 2:
        return None
    return 100 * float(np.polyfit(np.arange(count), entropy[:count], 1)[0])


def _weight(weight: float) -> str:
    return f"λ = {weight:g}" if weight else "the model's law"


KNN_LM = Part(
    "kNN-LM on WikiText-2",
    ("text_model",),
    ("wikitext2",),
    knn_lm,
    (Column("nats", "nats a token"), Column("slope", "entropy per 100 tokens")),
    lambda config: [
        *(
            Direction("held-out loss falls", "nats", _weight(0.0), _weight(w))
            for w in config.knn.weights
        ),
        Direction(
            "the neighbours' entropy grows faster on own text",
            *("slope", "own text", "human text"),
        ),
    ],
    lambda found: [
        f"{found['keys']} keys of training articles. nats: of held-out articles. "
        "entropy: of the neighbours' law, the rise with the position behind the "
        "prompt, in nats; own text is sampled from the mixture.",
    ],
)
