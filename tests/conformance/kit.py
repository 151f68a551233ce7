"""What the conformance tests share: toy models, examples of arguments, and runs.

`cases()` makes one method of every drafter (times every topology, where it takes one).
A method file whose factory has required arguments gets an entry in `EXAMPLES`.

Programs are few, because compiling them is what the suite costs: all models share one
set of functions and differ in params, and all runs have 4 rows and the same buffers. Of
every case there is one greedy program and one at temperature 0.8, both under `COMMON`.
"""

import dataclasses
import functools
import pathlib
import types

import jax
import numpy as np
import pytest

import decoding
from decoding import Method, Spec, base, catalogue, compose
from decoding.loops import decode, engines
from models.heads import (
    chimera,
    clover,
    eagle,
    eagle3,
    falcon,
    fspad,
    hidden_transfer,
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

# The toy model's greedy texts (tests/decoding/drafters/test_rest.py makes them again).
DATASTORE = str(pathlib.Path(__file__).parent.parent / "golden" / "datastore")

# Arguments where the defaults are absent or larger than a test needs.
EXAMPLES = {
    "topologies/chain": {"length": 3},
    "topologies/static": {"choices": SMALL_TREE},
    "topologies/specinfer": {"expansion": (2, 1, 1)},
    "topologies/rsd_c": {"branching": (2, 1, 2)},
    "topologies/rsd_s": {"width": 3, "depth": 3},
    "topologies/sequoia": {"acceptance": (0.5, 0.2, 0.1), "budget": 7, "depth": 3},
    "topologies/dyspec": {"nodes": 6, "depth": 3, "width": 3, "threshold": 0.05},
    "topologies/eagle2": {"nodes": 7, "depth": 3, "top_k": 2},
    "topologies/confidence_stop": {"length": 3, "threshold": 0.5},
    "topologies/specdec_pp": {"length": 3, "least": 1, "blocks": 1, "threshold": 0.5},
    "topologies/hardware_aware": {
        "times": ((1, 1.0), (3, 1.1), (5, 1.5), (7, 1.6)),
        "choices": SMALL_TREE,
    },
    "drafters/prompt_lookup": {"k": 4},
    "drafters/copyspec": {"gamma": 2, "copy": 4},
    "drafters/suffix_decoding": {"most": 4, "tree": True, "pages": 8, "span": 16},
    "drafters/lookahead": {"ngram": 3, "window": 3, "guesses": 3},
    "drafters/aded": {
        "iterations": 12,
        "depth": 3,
        "kept": 6,
        "successors": 4,
        "size": 64,
    },
    "drafters/rest": {"datastore": DATASTORE, "choices": 8, "hits": 20, "length": 4},
    "drafters/copyspec_model": {"gamma": 2, "copy": 4},
    "drafters/rasd": {"branches": 2, "length": 4, "places": 4},
    "drafters/rapid": {"chunk": 4, "kept": 12},
    "drafters/ead": {"length": 3, "window": 2, "threshold": 2.0, "dwell": 2},
    "drafters/foreal": {"length": 3, "lead": 2, "gate": 0.5, "terminators": "ce"},
    "drafters/fs_gen": {"length": 3, "threshold": 0.4},
    "drafters/pearl": {"gamma": 3},
    "drafters/online_sd": {"places": 32, "window": 8, "best": 4},
    "drafters/s2d": {"exits": (1,), "threshold": 0.5},
    # At 1 the target is run as a whole, and the text is plain decoding's.
    "exits/specee": {"static": (0,), "threshold": 1.0},
    "drafters/speculative_jacobi": {"window": 4},
    "drafters/del_exit": {"length": 4},
    "drafters/swift": {"length": 4, "siblings": (1, 2, 2, 3), "nodes": 9, "context": 6},
    "transforms/ban_tokens": {"bans": ((3, 4), (6,))},
    "transforms/frequency_penalty": {"penalty": 0.5},
    "transforms/logit_bias": {"bias": ((1, 0.5), (2, -0.5))},
    "transforms/min_new_tokens": {"count": 5},
    "transforms/min_p": {"p": 0.02},
    "transforms/presence_penalty": {"penalty": 0.3},
    "transforms/repetition_penalty": {"penalty": 1.2},
    "transforms/temperature": {"temperature": 0.9},
    "transforms/top_k": {"k": 6},
    "transforms/top_p": {"p": 0.95},
    "transforms/typical": {"mass": 0.95},
    "constraints/regex": {"pattern": "(a|b|c[a-e]|d+|e|f)*"},
}


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
    return Spec(name, **{**EXAMPLES.get(name, {}), **arguments})


# What most programs run under: two transforms with a state, and one warper.
COMMON = tuple(
    spec(f"transforms/{name}") for name in ("frequency_penalty", "ban_tokens", "top_k")
)


def transforms() -> tuple[Spec, ...]:
    """Every transform and constraint; the temperature is generate's to give."""
    every = catalogue.names("transforms") + catalogue.names("constraints")
    return tuple(spec(n) for n in every if n != "transforms/temperature")


# A topology of each kind: a chain, a static tree, one that is cut to its best nodes.
KINDS = ("topologies/chain", "topologies/static", "topologies/eagle2")
# Drafters that build on `model` meet the two that differ most.
BUILT_ON_MODEL = ("topologies/chain", "topologies/eagle2")
# Cases that differ from others in little (of heads, in arithmetic that their own tests
# hold against whole texts): they run with `-m long`.
RARE = (
    "clover-static",
    "copyspec_model-eagle2",
    "easyspec-eagle2",
    "fspad-eagle2",
    "lud",
    "model-confidence_stop",
    "model-dyspec",
    "model-hardware_aware",
    "model-rsd_s",
    "rapid-eagle2",
    "rasd-eagle2",
    "oracle-static",
)
# Static trees by another name: their laws are tested, and their shapes.
SHAPES = ("topologies/specinfer", "topologies/rsd_c", "topologies/sequoia")


def cases() -> dict[str, Method]:
    """A name and a method for every drafter and every exit, under `COMMON`.

    The draft model meets every topology but the `SHAPES`, the target as its own draft
    the `KINDS`, and drafters that join other drafts to the draft model's two of them.
    """
    every = tuple(t for t in catalogue.names("topologies") if t not in SHAPES)
    met = {"drafters/model": every, "drafters/oracle": KINDS, **WITH_HEADS}
    found = {}
    for name in catalogue.names("drafters"):
        short = name.split("/")[1]
        if "topology" not in Spec(name).card.needs:
            found[short] = Method(spec(name), transforms=COMMON)
            continue
        for grown in met.get(name, BUILT_ON_MODEL):
            method = Method(spec(name), topology=spec(grown), transforms=COMMON)
            found[f"{short}-{grown.split('/')[1]}"] = method
    for name in catalogue.names("exits"):
        found[name.split("/")[1]] = Method(exit=spec(name), transforms=COMMON)
    return found


# Drafters with heads meet one topology each: the tree that their paper has.
WITH_HEADS = {
    "drafters/medusa": ("topologies/static",),
    "drafters/hydra": ("topologies/static",),
    "drafters/eagle": ("topologies/eagle2",),
    "drafters/eagle3": ("topologies/eagle2",),
    "drafters/fspad": ("topologies/eagle2",),
    "drafters/clover": ("topologies/static",),
    "drafters/chimera": ("topologies/static",),
    "drafters/falcon": ("topologies/static",),
    "drafters/ppd": ("topologies/static",),
    "drafters/hidden_transfer": ("topologies/static",),
}


@functools.cache
def heads(name: str):
    """Random heads for the toy model."""
    return heads_of(name, TARGET)


def heads_of(name: str, lm):
    """Random heads for a target, some way from where training begins."""
    key, config = jax.random.key(7), lm.config
    rows = jax.random.normal(key, (config.vocab_size, config.d_model))
    most = np.arange(1, config.vocab_size - 1)  # that EAGLE-3's draft can say
    make = {
        "drafters/medusa": lambda: medusa.init(key, config, rows, 3),
        "drafters/hydra": lambda: hydra.init(key, config, rows, 3, True, True),
        "drafters/eagle": lambda: eagle.init(key, config),
        "drafters/eagle3": lambda: eagle3.init(key, config, rows, most),
        "drafters/fspad": lambda: fspad.init(key, config),
        "drafters/clover": lambda: clover.init(key, config),
        "drafters/chimera": lambda: chimera.init(key, config, rows, 3),
        "drafters/falcon": lambda: falcon.init(key, config),
        "drafters/lud": lambda: ppd.init(key, lm.model, lm.params),
        "drafters/ppd": lambda: ppd.init(key, lm.model, lm.params),
        "drafters/hidden_transfer": lambda: hidden_transfer.init(key, config),
        "exits/specee": lambda: eagle.init(key, config),
    }[name]
    params = jax.tree.map(np.asarray, jax.jit(make)())
    kept = {"kept": params.pop("kept")} if "kept" in params else {}
    rng = np.random.default_rng(7)
    stir = lambda x: np.float32(x + 0.3 * rng.normal(size=x.shape))
    return jax.tree.map(jax.numpy.asarray, {**jax.tree.map(stir, params), **kept})


def each(cases: dict[str, Method]) -> list:
    """The cases as parameters of a test; one worker runs all that are of one case."""
    return [
        pytest.param(
            method,
            id=name,
            marks=(pytest.mark.xdist_group(name), pytest.mark.long)
            if name in RARE
            else pytest.mark.xdist_group(name),
        )
        for name, method in cases.items()
    ]


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
    """Plain decoding's text under the transforms of `method`."""
    bare = Method(transforms=method.transforms)
    return generate(bare, temperature, **fields).tokens


class Run:
    """A composed method and its state, to be stepped, altered and looked into."""

    def __init__(
        self, method: Method, temperature: float = 0.0, lm=TARGET, draft=None, beside=()
    ):
        beside = dict(beside) or models(method, draft)
        self.parts = compose.compose(method, lm, temperature, beside, streams(method))
        self.params = {"target": lm.params}
        for name, given in beside.items():
            self.params[name] = getattr(given, "params", given)
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
