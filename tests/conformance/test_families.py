"""Every drafter keeps plain decoding's text on each family of targets.

The families whose layers are not all one dense kind: experts, sinks, windows, layers
without a rope, layers of two shapes, latent attention. Small random weights; greedy and
sampled rows in one program.
"""

import dataclasses
import functools
import inspect
import json
import pathlib
import types

import jax
import pytest

import decoding
from decoding import Method, Spec, catalogue
from decoding.conformance import kit, toy_heads
from models import checkpoints, transformer
from models.cache_layouts import paged, quantized
from models.errors import MethodError

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "models"
FAMILIES = (
    "mixtral",
    "qwen3_moe",
    "gpt_oss",
    "gemma4_text",
    "olmo3",
    "smollm3",
    "deepseek_v2",
)
HEATS = (0.0, 0.8, 0.8, 0.0)  # of the kit's prompts
NEW = 16
# One topology a drafter: the toy model meets all of them.
CASES = {
    name: kit.cases_of(name)
    for name in kit.drafters()
    if name not in ("drafters/plain", "drafters/oracle", "drafters/forced")
}
USUAL = {  # in every run
    "gpt_oss": "drafters/eagle3",
    "gemma4_text": "drafters/token_recycling",
    "deepseek_v2": "drafters/dspark",
    "smollm3": "drafters/prompt_lookup",
    "qwen3_moe": "drafters/medusa",
    "olmo3": "drafters/swift",  # skips layers that share a window
    "mixtral": "drafters/model",
}


@functools.cache
def target(family: str, seed: int = 0):
    """A small random model of a family, of the toy's vocabulary, whose texts go on."""
    path = GOLDEN / family / "config.json"
    _, config = checkpoints.read_config(json.loads(path.read_text()), family)
    config = dataclasses.replace(config, vocab_size=kit.VOCAB, bos=None, eos=())
    model = transformer.transformer(config)
    params = jax.jit(model.init)(jax.random.key(seed))
    params = jax.tree.map(lambda x: 2.0 * x if x.ndim > 1 else x, params)
    return types.SimpleNamespace(
        model=model, params=params, tokenizer=kit.TARGET.tokenizer, config=config
    )


def beside(method: Method, lm) -> dict:
    """Random heads and predictors of a target; its own kind as a draft model."""
    found = dict(kit.drafts(method, lm) or {})
    if "heads" in found:
        found["heads"] = toy_heads.heads(method.drafter.name, lm)
    return found


def generate(method: Method, lm, **drafts):
    return decoding.generate(
        lm,
        kit.PROMPTS,
        method=method,
        temperature=HEATS,
        max_new_tokens=NEW,
        drafts=drafts or None,
    )


@functools.cache
def plain(family: str) -> list[list[int]]:
    return generate(Method(transforms=kit.COMMON), target(family)).tokens


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] * (name != USUAL)) for name in CASES],
)
def test_texts_are_plain_s(family, name):
    method = list(CASES[name].values())[-1]
    lm = target(family)
    out = generate(method, lm, **beside(method, lm))
    assert out.tokens == plain(family)
    assert min(map(len, out.tokens)) == NEW


POLICIES = [name for name in catalogue.names("caches") if not Spec(name).card.kind]
# What a family cannot have, and the reason's words.
SINKS, VALUES = "attention sinks", "keys and values"
REFUSED = {
    **{("gpt_oss", name): SINKS for name in ("actqkv", "quest", "tidal", "loopserve")},
    ("gpt_oss", "sentence_kv"): SINKS,
    **{(name, "minicache"): "full attention" for name in ("gpt_oss", "gemma4_text")},
    ("gemma4_text", "tidal"): "a window cannot select",
    **{("deepseek_v2", name): VALUES for name in ("minicache", "chelsea")},
    ("deepseek_v2", "ada_kv"): "parts of their keys",
    ("olmo3", "minicache"): "full attention",
    ("olmo3", "tidal"): "a window cannot select",
}
KEEPING = {"budget": 64, "retained": 1.0}  # all slots, none of them merged
OWN_NEEDS = ("caches/speckv", "caches/double_sparsity")  # a draft model, a file


@pytest.mark.parametrize(
    ("family", "name"),
    [
        pytest.param(
            *(family, name),
            marks=[pytest.mark.long]
            * ((family, name) != ("deepseek_v2", "caches/h2o")),
        )
        for family in FAMILIES
        for name in POLICIES
        if name not in OWN_NEEDS
    ],
)
def test_a_policy_that_keeps_all_changes_nothing(family, name):
    """Plain decoding's texts, or a refusal with its reason."""
    known = inspect.signature(Spec(name).factory).parameters
    whole = {n: x for n, x in KEEPING.items() if n in known}
    policy = Spec(name, **{**Spec(name).card.examples, **whole})
    method = Method(transforms=kit.COMMON, policy=policy)
    reason = REFUSED.get((family, name.split("/")[1]))
    if reason is not None:
        with pytest.raises(MethodError, match=reason):
            generate(method, target(family))
        return
    assert generate(method, target(family)).tokens == plain(family)


LAYOUTS = {
    "paged": paged.pages(16),
    "int8": quantized.int8(32),
    "int4": quantized.int4(32),
}


@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_pages_and_codes(family, layout):
    """Plain and drafted texts are the dense cache's.

    No text fills a group of codes: test_family_trees.py has longer ones.
    """
    lm = target(family)
    model = transformer.transformer(lm.config, cache=LAYOUTS[layout])
    lm = types.SimpleNamespace(**{**vars(lm), "model": model})
    for drafter in ("drafters/plain", "drafters/prompt_lookup"):
        method = Method(Spec(drafter), transforms=kit.COMMON)
        assert generate(method, lm).tokens == plain(family), drafter


def test_fault_another_target():
    """The texts can differ: those of other weights do."""
    lm = target("mixtral", 1)
    assert generate(Method(transforms=kit.COMMON), lm).tokens != plain("mixtral")
