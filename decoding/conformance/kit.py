"""Toy models, the cases that contracts run on, and runs whose state tests inspect.

`cases()` makes one method of every drafter (times the topologies, if it takes one) and
of every exit. Arguments are those of `CARD.examples`.

Programs are few, because compilation dominates the suite's time. All models share one
set of functions and differ in params. All runs have 4 rows and the same buffers. Every
case has one greedy program and one at temperature 0.8, both under `COMMON`.
"""

import atexit
import dataclasses
import functools
import inspect
import shutil
import tempfile
import types

import jax
import numpy as np

import decoding
from decoding import Method, Spec, base, catalogue, compose
from decoding.conformance import toy_heads
from decoding.loops import decode, engines
from decoding.text_lookup import suffix_array
from decoding.tree_building import tables
from models.predictors import (
    acceptance_predictor,
    exit_predictor,
    layer_router,
    value_predictor,
)
from models.synthetic import toy, toy_masked

VOCAB, EOS, NEW, SIZE = 8, 7, 40, 64
PROMPTS = (
    [1],
    [2, 3, 4],
    [1, 2, 3, 1, 2, 3, 1, 2, 5],
    [int(t) for t in np.random.default_rng(0).integers(0, 7, 20)],
)
SMALL_TREE = ((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0))

Heat = float | tuple[float, ...]  # one temperature, or one a prompt


class Letters:
    """A tokenizer whose token i is the i-th letter; EOS has no bytes."""

    def token_bytes(self) -> list[bytes]:
        return [b"" if i == EOS else bytes([97 + i]) for i in range(VOCAB)]

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        return [ord(c) - 97 for c in text]

    def decode(self, tokens: list[int]) -> str:
        return "".join(chr(97 + t) for t in tokens)


@functools.cache
def _functions(vocab: int, eos: tuple[int, ...]):
    return toy.model(vocab, order=2, eos=eos)[0]


@functools.cache
def model(seed: int = 0, ending: float = -30.0, vocab: int = VOCAB):
    """Make a toy model in the form that `models.load` returns.

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


@functools.cache
def masked_draft(**fields):
    """Make a toy diffusion model of the target's tokens and a mask."""
    functions, params = toy_masked.model(VOCAB + 1, block_size=2, **fields)
    return types.SimpleNamespace(model=functions, params=params, tokenizer=None)


# The parameters that the catalogue fills in, for tests that build a part alone.
PARTS = {"vocab_size": VOCAB, "eos": (EOS,), "tokenizer": TARGET.tokenizer}


def spec(name: str, **arguments) -> Spec:
    """Make a part with its card's examples, and the toy's datastore if it takes one."""
    part = Spec(name)
    known = inspect.signature(part.factory).parameters
    files = {"datastore": datastore()} if "datastore" in known else {}
    return Spec(name, **{**files, **part.card.examples, **arguments})


@functools.cache
def datastore() -> str:
    """Write a datastore of the toy model's greedy texts, deleted at exit."""
    folder = tempfile.mkdtemp(prefix="decodax-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    texts = [[*p, *greedy_by_hand(TARGET.params, p, NEW)] for p in PROMPTS]
    suffix_array.save(suffix_array.build(texts), folder)
    return folder


# The transforms of most programs: one with a state, which forbids tokens. All the
# transforms make a program half as large again; `-m long` runs every drafter with each.
COMMON = (spec("transforms/ban_tokens"),)


def transforms() -> tuple[Spec, ...]:
    """List all transforms and constraints but the temperature (`generate` adds it)."""
    every = catalogue.names("transforms") + catalogue.names("constraints")
    specs = [spec(n) for n in every if n != "transforms/temperature"]
    return tuple(part for part in specs if not part.card.kind)


# A topology of each kind: a chain, a static tree, one that is cut to its best nodes.
KINDS = ("topologies/chain", "topologies/static", "topologies/eagle2")
# Drafters that build on `model` run with the two topologies that differ most.
BUILT_ON_MODEL = ("topologies/chain", "topologies/eagle2")
# Heads run with the static tree, and these with their papers' dynamic tree.
GROWING = ("drafters/eagle", "drafters/eagle3", "drafters/fspad")
# Drafters with another one inside run with these, too: by it, and by its topology.
INNER = {
    "drafters/sam_decoding": {
        "drafters/eagle": "topologies/eagle2",
        "drafters/model": "topologies/chain",
    }
}
# Static trees by another name: tests of their laws and shapes suffice.
SHAPES = ("topologies/specinfer", "topologies/rsd_c", "topologies/sequoia")


def cases() -> dict[str, Method]:
    """Name a method for every drafter and every exit, under `COMMON`.

    The draft model runs with every topology but the `SHAPES`. The target as its own
    draft runs with the `KINDS`. Drafters that add drafts to the draft model's run with
    two topologies.
    """
    methods: dict[str, Method] = {}
    for name in drafters():
        methods |= cases_of(name)
    for name, inners in INNER.items():
        for inner, grown in inners.items():
            short = "-".join(part.split("/")[1] for part in (name, inner))
            drafter = spec(name, inner=inner)
            methods[short] = Method(drafter, topology=spec(grown), transforms=COMMON)
    for name in catalogue.names("exits"):
        methods[name.split("/")[1]] = exiting(name)
    return methods


def drafters() -> list[str]:
    """List the drafters of rows; those of a search's lanes have their own contract."""
    names = catalogue.names("drafters")
    return [name for name in names if not Spec(name).card.kind]


def cases_of(name: str, **arguments) -> dict[str, Method]:
    """Name a method for each topology that one drafter runs with, under `COMMON`."""
    drafter, short = spec(name, **arguments), name.rpartition("/")[2]
    if "topology" not in drafter.card.needs:
        return {short: Method(drafter, transforms=COMMON)}
    grown = [name for name in catalogue.names("topologies") if name not in SHAPES]
    tabled = [n for n in grown if Spec(n).card.family == tables.FAMILY]
    headed = [n for n in grown if "heads" in Spec(n).card.needs]
    every = tuple(name for name in grown if name not in (*tabled, *headed))
    topologies = {"drafters/model": every, "drafters/oracle": KINDS}
    topologies |= dict.fromkeys(GROWING, ("topologies/eagle2",))
    blocks = {f"drafters/{name}" for name in toy_heads.BLOCKS} - {"drafters/domino"}
    topologies |= dict.fromkeys(blocks, ("topologies/static", *tabled))
    topologies["drafters/dspark"] = (*topologies["drafters/dspark"], *headed)
    is_head = drafter.card.family == "head"
    default = ("topologies/static",) if is_head else BUILT_ON_MODEL
    return {
        f"{short}-{grown.split('/')[1]}": Method(
            drafter, topology=spec(grown), transforms=COMMON
        )
        for grown in topologies.get(name, default)
    }


@functools.cache
def exiting(name: str) -> Method:
    """Make a method with an exit, and a drafter if the exit is path_pure.

    The drafter lets the texts differ. Without one, the card's examples keep the text of
    plain decoding.
    """
    alone = Method(exit=spec(name), transforms=COMMON)
    available_models = {"model": TARGET.model, **models(alone)}
    if spec(name).build({**PARTS, **available_models}).path_pure:
        return dataclasses.replace(alone, drafter=spec("drafters/prompt_lookup"))
    return alone


@functools.cache
def heads(name: str):
    """Make random heads for the toy model."""
    return toy_heads.heads(name, TARGET)


@functools.cache
def acceptance_head():
    """Make random params of an acceptance predictor."""
    return acceptance_predictor.init(jax.random.key(8), TARGET.config.d_model)


@functools.cache
def exit_params(name: str, depth: int = 2, width: int = 8):
    """Make random params of what an exit reads, for a target of a depth and width."""
    if name == "exits/first":
        routers = layer_router.init(depth, width, 0.0)
        weight = jax.random.normal(jax.random.key(9), (depth, width))
        return {**routers, "weight": weight / width**0.5}
    return exit_predictor.init(jax.random.key(9), depth, 3, 8)


def drafts(method: Method, lm=None) -> dict | None:
    """Return the draft model, heads and predictors that the method needs."""
    needs, params = method.needs, {}
    inner = (x for p in method.parts if type(p) is Spec for x in p.inner.values())
    for part in (*method.parts, *inner):
        if "heads" in part.card.needs and part is not method.topology:
            params["heads"] = heads(part.name)
    if method.exit is not None and "exits" in needs:
        config = (lm or TARGET).config
        params["exits"] = exit_params(method.exit.name, config.n_layers, config.d_model)
    if "draft" in needs:
        families = {part.card.family for part in method.parts}
        masked = compose.MASKED_DRAFT in families
        params["draft"] = masked_draft() if masked else lm or DRAFT
    if method.verifier is not None and "judge" in method.verifier.card.needs:
        params["judge"] = {"weight": jax.numpy.zeros(8), "bias": jax.numpy.zeros(())}
    if method.topology is not None and "acceptance" in method.topology.card.needs:
        params["acceptance"] = acceptance_head()
    for part in method.rewards:
        if "reward" in part.card.needs:
            # A head's factory asks for the target that it reads, a model's does not.
            head = "model" in part.card.needs
            params["reward"] = value_head() if head else model(5)
    return params or None


@functools.cache
def value_head():
    """Make random params of a value head."""
    return value_predictor.init(jax.random.key(10), TARGET.config.d_model)


@functools.cache
def streams(method: Method) -> dict[str, base.Stream]:
    """Make a toy model for every stream that the method's transforms read."""
    built = [s.build(PARTS) for s in method.transforms]
    masks = {name for transform in built for name, _ in transform.numbers}
    every = [name for transform in built for name in transform.streams]
    names = [name for name in every if name not in masks]  # the host computes these
    return {name: base.Stream(TARGET.model, name) for name in names}


def generate(method: Method, temperature: Heat = 0.0, *, draft=None, **fields):
    """Call `decoding.generate` with the toy models; `fields` override its arguments."""
    fields = {"prompts": PROMPTS, "max_new_tokens": NEW, "lm": TARGET, **fields}
    arguments = {"streams": streams(method), **fields}
    return decoding.generate(
        method=method,
        temperature=temperature,
        drafts=models(method, draft),
        **arguments,
    )


def models(method: Method, draft=None) -> dict:
    """Return every model beside the target that the method needs, by name."""
    by_name = dict(drafts(method, draft) or {})
    for i, name in enumerate(streams(method)):
        by_name.setdefault(name, model(2 + i))
    return by_name


def plain(method: Method, temperature: Heat, **fields) -> list[list[int]]:
    """Decode plainly under the transforms, policy and exit of `method`.

    A method without a drafter is compared with the target without its exit. Texts of
    `PROMPTS` are kept: some fifty methods are compared with the same.
    """
    bare = dataclasses.replace(method, drafter=None, verifier=None, topology=None)
    if method.drafter is None:
        bare = dataclasses.replace(bare, exit=None)
    if not {*fields} <= {"seed", "max_new_tokens", "lm"}:
        return generate(bare, temperature, **fields).tokens
    lm = fields.get("lm", TARGET)
    numbers = fields.get("seed", 0), fields.get("max_new_tokens", NEW)
    key = (bare, temperature, *numbers, id(lm))
    if key not in _PLAIN:  # `lm` beside its text: its id is taken while it lives
        _PLAIN[key] = lm, generate(bare, temperature, **fields).tokens
    return _PLAIN[key][1]


_PLAIN: dict[tuple, tuple] = {}


class Run:
    """A composed method, to be run step by step, altered and inspected."""

    def __init__(
        self, method: Method, temperature: Heat = 0.0, lm=TARGET, draft=None, beside=()
    ):
        beside = dict(beside) or models(method, draft)
        self.parts = compose.compose(method, lm, temperature, beside, streams(method))
        self.params = compose.params(lm, beside, streams(method))
        self.engine = engines.engine(self.parts)

    def alter(self, **changes) -> "Run":
        """Change the program (to plant a fault, say) and compile it separately."""
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
        """Continue decoding. `state` is donated: `copy` the leaves needed later."""
        return self.engine.advance(self.params, state, rounds)

    def texts(self, prompts=PROMPTS, **fields) -> list[list[int]]:
        return texts(self.advance(self.start(prompts, **fields)), prompts)


def texts(state: decode.DecodeState, prompts=PROMPTS) -> list[list[int]]:
    """List the new tokens of every row."""
    tokens, ends = np.asarray(state.tokens), np.asarray(state.length)
    return [t[len(p) : e].tolist() for t, p, e in zip(tokens, prompts, ends)]


def copy(state):
    """Copy a state's leaves, which survive the donation of the original."""
    return jax.tree.map(jax.numpy.copy, state)


def same(a, b) -> bool:
    """Return whether two pytrees are equal, bit for bit."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(_bits(x), _bits(y)) for x, y in pairs)


def _bits(x) -> np.ndarray:
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return np.asarray(x)


def greedy_by_hand(params, prompt, new, eos=(EOS,)) -> list[int]:
    """Compute the greedy text by table look-up, independently of the loop."""
    text = list(prompt)
    while len(text) < len(prompt) + new:
        text.append(int(toy.logits(params, text).argmax()))
        if text[-1] in eos:
            break
    return text[len(prompt) :]
