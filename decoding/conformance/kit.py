"""Toy models, the cases that contracts run on, and runs that can be looked into.

`cases()` makes one method of every drafter (times every topology, where it takes one)
and of every exit. Arguments are those of `CARD.examples`.

Programs are few, because compiling them is what the suite costs: all models share one
set of functions and differ in params, and all runs have 4 rows and the same buffers. Of
every case there is one greedy program and one at temperature 0.8, both under `COMMON`.
"""

import atexit
import dataclasses
import functools
import importlib
import inspect
import shutil
import tempfile
import types
from collections.abc import Callable

import jax
import numpy as np

import decoding
from decoding import Method, Spec, base, catalogue, compose
from decoding.loops import decode, engines
from decoding.text_lookup import suffix_array
from models.heads import (
    chimera,
    eagle,
    eagle3,
    hydra,
    medusa,
    ppd,
)
from models.predictors import acceptance_predictor, exit_predictor
from models.synthetic import toy

VOCAB, EOS, NEW, SIZE = 8, 7, 40, 64
PROMPTS = (
    [1],
    [2, 3, 4],
    [1, 2, 3, 1, 2, 3, 1, 2, 5],
    [int(t) for t in np.random.default_rng(0).integers(0, 7, 20)],
)
SMALL_TREE = ((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0))


class Letters:
    """A tokenizer whose token i is the i-th letter; the end of a text has no bytes."""

    def token_bytes(self) -> list[bytes]:
        return [b"" if i == EOS else bytes([97 + i]) for i in range(VOCAB)]

    def encode(self, text: str) -> list[int]:
        return [ord(c) - 97 for c in text]

    def decode(self, tokens: list[int]) -> str:
        return "".join(chr(97 + t) for t in tokens)


@functools.cache
def _functions(vocab: int, eos: tuple[int, ...]):
    return toy.model(vocab, order=2, eos=eos)[0]


@functools.cache
def model(seed: int = 0, ending: float = -30.0, vocab: int = VOCAB):
    """What `models.load` would return of a toy model.

    `ending` is added to the logits of EOS: at -30 texts do not end.
    """
    eos = (EOS,) if vocab == VOCAB else ()
    functions = _functions(vocab, eos)
    params = functions.init(jax.random.key(seed), 1.5)
    if eos:
        params = {**params, "table": params["table"].at[..., EOS].add(ending)}
    letters = Letters() if eos else None
    return types.SimpleNamespace(
        model=functions, params=params, tokenizer=letters, config=functions.config
    )


TARGET, DRAFT = model(), model(1)

# What the catalogue fills in, where a test builds a part by itself.
PARTS = {"vocab_size": VOCAB, "eos": (EOS,), "tokenizer": TARGET.tokenizer}


def spec(name: str, **arguments) -> Spec:
    """A part with the arguments of its card's examples, and the toy's datastore."""
    part = Spec(name)
    known = inspect.signature(part.factory).parameters
    files = {"datastore": datastore()} if "datastore" in known else {}
    return Spec(name, **{**files, **part.card.examples, **arguments})


@functools.cache
def datastore() -> str:
    """A datastore of the toy model's greedy texts, kept until the process ends."""
    folder = tempfile.mkdtemp(prefix="decodax-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    texts = [[*p, *greedy_by_hand(TARGET.params, p, NEW)] for p in PROMPTS]
    suffix_array.save(suffix_array.build(texts), folder)
    return folder


# What most programs run under: a transform with a state, which forbids tokens. More of
# them make a program half as large again, and meet every drafter with `-m long`.
COMMON = (spec("transforms/ban_tokens"),)


def transforms() -> tuple[Spec, ...]:
    """Every transform and constraint; the temperature is generate's to give."""
    every = catalogue.names("transforms") + catalogue.names("constraints")
    return tuple(spec(n) for n in every if n != "transforms/temperature")


# A topology of each kind: a chain, a static tree, one that is cut to its best nodes.
KINDS = ("topologies/chain", "topologies/static", "topologies/eagle2")
# Drafters that build on `model` meet the two that differ most.
BUILT_ON_MODEL = ("topologies/chain", "topologies/eagle2")
# Heads meet the static tree, and these the tree that their papers grow.
GROWING = ("drafters/eagle", "drafters/eagle3", "drafters/fspad")
# Static trees by another name: their laws are tested, and their shapes.
SHAPES = ("topologies/specinfer", "topologies/rsd_c", "topologies/sequoia")


def cases() -> dict[str, Method]:
    """A name and a method for every drafter and every exit, under `COMMON`.

    The draft model meets every topology but the `SHAPES`, the target as its own draft
    the `KINDS`, and drafters that join other drafts to the draft model's two of them.
    """
    every = tuple(t for t in catalogue.names("topologies") if t not in SHAPES)
    met = {"drafters/model": every, "drafters/oracle": KINDS}
    met |= dict.fromkeys(GROWING, ("topologies/eagle2",))
    found = {}
    for name in catalogue.names("drafters"):
        short = name.split("/")[1]
        if "topology" not in Spec(name).card.needs:
            found[short] = Method(spec(name), transforms=COMMON)
            continue
        is_head = Spec(name).card.family == "head"
        usual = ("topologies/static",) if is_head else BUILT_ON_MODEL
        for grown in met.get(name, usual):
            method = Method(spec(name), topology=spec(grown), transforms=COMMON)
            found[f"{short}-{grown.split('/')[1]}"] = method
    for name in catalogue.names("exits"):
        found[name.split("/")[1]] = exiting(name)
    return found


@functools.cache
def exiting(name: str) -> Method:
    """An exit under a drafter where it takes one, so that the text can differ.

    One that is not path_pure stands alone: its examples leave plain decoding's text.
    """
    alone = Method(exit=spec(name), transforms=COMMON)
    beside = {"model": TARGET.model, **models(alone)}
    if spec(name).build({**PARTS, **beside}).path_pure:
        return dataclasses.replace(alone, drafter=spec("drafters/prompt_lookup"))
    return alone


@functools.cache
def heads(name: str):
    """Random heads for the toy model."""
    return heads_of(name, TARGET)


def heads_of(name: str, lm):
    """Random heads for a target, some way from where training begins."""
    key, config = jax.random.key(7), lm.config
    rows = jax.random.normal(key, (config.vocab_size, config.d_model))
    most = np.arange(1, config.vocab_size - 1)  # that EAGLE-3's draft can say
    # Those whose `init` takes more than a key and a config, or has another's name.
    small: dict[str, Callable] = {
        "drafters/medusa": lambda: medusa.init(key, config, rows, 3),
        "drafters/hydra": lambda: hydra.init(key, config, rows, 3, True, True),
        "drafters/eagle3": lambda: eagle3.init(key, config, rows, most),
        "drafters/chimera": lambda: chimera.init(key, config, rows, 3),
        "drafters/lud": lambda: ppd.init(key, lm.model, lm.params),
        "drafters/ppd": lambda: ppd.init(key, lm.model, lm.params),
        "exits/specee": lambda: eagle.init(key, config),
    }

    def usual():
        head = importlib.import_module(f"models.heads.{name.split('/')[1]}")
        return head.init(key, config)

    params = jax.tree.map(np.asarray, jax.jit(small.get(name, usual))())
    kept = {"kept": params.pop("kept")} if "kept" in params else {}
    rng = np.random.default_rng(7)
    stir = lambda x: np.float32(x + 0.3 * rng.normal(size=x.shape))
    return jax.tree.map(jax.numpy.asarray, {**jax.tree.map(stir, params), **kept})


@functools.cache
def acceptance_head():
    """Random params of a head that judges drafts."""
    return acceptance_predictor.init(jax.random.key(8), TARGET.config.d_model)


@functools.cache
def exit_predictors():
    """Random params of predictors that say where the target may stop."""
    return exit_predictor.init(jax.random.key(9), TARGET.config.n_layers, 3, 8)


def drafts(method: Method, lm=None) -> dict | None:
    """The draft model and the heads, where the method needs them."""
    needs, found = method.needs, {}
    for part in method.parts:
        if "heads" in part.card.needs:
            found["heads"] = heads(part.name)
    if "exits" in needs:
        found["exits"] = exit_predictors()
    if "draft" in needs:
        found["draft"] = lm or DRAFT
    if method.verifier is not None and "judge" in method.verifier.card.needs:
        found["judge"] = {"weight": jax.numpy.zeros(8), "bias": jax.numpy.zeros(())}
    if method.topology is not None and "acceptance" in method.topology.card.needs:
        found["acceptance"] = acceptance_head()
    return found or None


@functools.cache
def streams(method: Method) -> dict[str, base.Stream]:
    """A toy model for every stream that the method's transforms read."""
    built = [s.build(PARTS) for s in method.transforms]
    names = [name for transform in built for name in transform.streams]
    return {name: base.Stream(TARGET.model, name) for name in names}


def generate(method: Method, temperature: float = 0.0, *, draft=None, **fields):
    fields = {"prompts": PROMPTS, "max_new_tokens": NEW, "lm": TARGET, **fields}
    beside = {"streams": streams(method), **fields}
    return decoding.generate(
        method=method, temperature=temperature, drafts=models(method, draft), **beside
    )


def models(method: Method, draft=None) -> dict:
    """Every model beside the target that the method needs."""
    found = dict(drafts(method, draft) or {})
    for i, name in enumerate(streams(method)):
        found.setdefault(name, model(2 + i))
    return found


def plain(method: Method, temperature: float, **fields) -> list[list[int]]:
    """Plain decoding's text under the transforms, policy and exit of `method`.

    An exit alone is held against the whole target.
    """
    bare = dataclasses.replace(method, drafter=None, verifier=None, topology=None)
    if method.drafter is None:
        bare = dataclasses.replace(bare, exit=None)
    return generate(bare, temperature, **fields).tokens


class Run:
    """A composed method and its state, to be stepped, altered and looked into."""

    def __init__(
        self, method: Method, temperature: float = 0.0, lm=TARGET, draft=None, beside=()
    ):
        beside = dict(beside) or models(method, draft)
        self.parts = compose.compose(method, lm, temperature, beside, streams(method))
        self.params = compose.params(lm, beside, streams(method))
        self.engine = engines.engine(self.parts)

    def alter(self, **changes) -> "Run":
        """Another program (a planted fault, say), compiled apart from the sound one."""
        program = dataclasses.replace(self.parts.program, **changes)
        self.parts = dataclasses.replace(self.parts, program=program)
        self.engine = engines.Engine(program)
        return self

    def start(self, prompts=PROMPTS, new=NEW, seed=0, size=SIZE, n=1, memory=None):
        rows = [p for p in prompts for _ in range(n)]
        limits = [len(p) + new for p in rows]
        keys = engines.request_keys(seed, len(prompts), n)
        return self.engine.start(
            self.params, self.parts, rows, limits, keys, size, memory
        )

    def advance(self, state: decode.DecodeState, rounds=None) -> decode.DecodeState:
        """Decode on; `state` is donated, so keep a `copy` of what is needed later."""
        return self.engine.advance(self.params, state, rounds)

    def texts(self, prompts=PROMPTS, **fields) -> list[list[int]]:
        return texts(self.advance(self.start(prompts, **fields)), prompts)


def texts(state: decode.DecodeState, prompts=PROMPTS) -> list[list[int]]:
    tokens, ends = np.asarray(state.tokens), np.asarray(state.length)
    return [t[len(p) : e].tolist() for t, p, e in zip(tokens, prompts, ends)]


def copy(state):
    """Leaves that survive the donation of the original."""
    return jax.tree.map(jax.numpy.copy, state)


def same(a, b) -> bool:
    """Whether two pytrees are equal, bit for bit."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(_bits(x), _bits(y)) for x, y in pairs)


def _bits(x) -> np.ndarray:
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return np.asarray(x)


def greedy_by_hand(params, prompt, new, eos=(EOS,)) -> list[int]:
    """The greedy text by table look-up, without a line of the loop."""
    text = list(prompt)
    while len(text) < len(prompt) + new:
        text.append(int(toy.logits(params, text).argmax()))
        if text[-1] in eos:
            break
    return text[len(prompt) :]
