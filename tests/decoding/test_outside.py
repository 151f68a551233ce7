"""Parts that are no files of decoding/: modules, built components, functions."""

import sys

import jax.numpy as jnp
import pytest

import decoding
from decoding import Method, Spec, base, built, recipes
from decoding.conformance import kit
from decoding.drafters import prompt_lookup
from decoding.topologies import static
from decoding.transforms import min_p, top_k
from decoding.verifiers import sample_then_match
from models.errors import MethodError
from tests.decoding import examples

SAMPLER, DRAFTER = "own_sampler.sampler", "own_drafter.drafter"


@pytest.fixture(autouse=True)
def packages(monkeypatch):
    """The example packages, as after `pip install`."""
    for folder in examples.FOLDERS:
        monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(recipes.metadata, "entry_points", examples.entry_points)
    yield
    for name in [n for n in sys.modules if n.split(".")[0] in examples.NAMES]:
        del sys.modules[name]


def test_a_module_is_a_part():
    """Its text is that of decodax's own such transform; planted: another margin."""
    margin = -float(jnp.log(0.3))  # min-p keeps p_i >= 0.3 max p
    outside = kit.generate(Method(transforms=(Spec(SAMPLER, margin=margin),)), 0.8)
    inside = Method(transforms=(Spec("transforms/min_p", p=0.3),))
    assert outside.tokens == kit.generate(inside, 0.8).tokens
    other = Method(transforms=(Spec(SAMPLER, margin=0.1),))
    assert outside.tokens != kit.generate(other, 0.8).tokens


def test_a_name_resolves_to_a_module():
    """By the module's name and by the entry point's; the text is plain decoding's."""
    plain = kit.generate(Method(), 0.8).tokens
    for name in (DRAFTER, "own_drafter"):
        out = kit.generate(name_of(name), 0.8)
        assert out.tokens == plain and out.stats.candidates > 0


def name_of(name: str) -> Method:
    return recipes.method(name)


def test_installed_methods_are_listed():
    entries = {entry.name: entry for entry in decoding.methods()}
    assert entries[SAMPLER].family == "truncation"
    assert entries[DRAFTER].guarantee == base.LAW
    with pytest.raises(MethodError, match="an example of decodax"):
        decoding.cite(DRAFTER)


def test_a_module_in_a_config_is_written_and_read():
    method = Method(Spec(DRAFTER, length=2), transforms=(Spec(SAMPLER, margin=1.0),))
    assert Method.from_config(method.to_config()) == method


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("own_sampler.nothing", "install its package"),
        ("own_sampler.sampler.py", "no module"),
        ("decoding.base", "define one"),
        ("models.base", "of the factories"),
    ],
)
def test_bad_modules(name, words):
    with pytest.raises(MethodError, match=words):
        kit.generate(Method(transforms=(Spec(name),)))


def test_a_module_of_another_role_is_refused():
    with pytest.raises(MethodError, match=r"with a drafter\(\)"):
        Method.from_config({"drafter": SAMPLER})


def test_built_components_are_parts():
    """Each role's component in place of its Spec: the same text and program."""
    drafter = prompt_lookup.drafter(k=4)
    spec = Method(Spec("drafters/prompt_lookup", k=4))
    made = Method(drafter, transforms=(top_k.transform(3),))
    wanted = Method(spec.drafter, transforms=(Spec("transforms/top_k", k=3),))
    out, expected = kit.generate(made, 0.8), kit.generate(wanted, 0.8)
    assert out.tokens == expected.tokens and out.guarantee == base.LAW
    assert out.stats.tokens_per_call == expected.stats.tokens_per_call
    assert kit.generate(made, 0.8).stats.compile_seconds == 0
    # Planted: another component is another program and text.
    other = Method(drafter, transforms=(top_k.transform(1),))
    assert kit.generate(other, 0.8).tokens != out.tokens


@pytest.mark.long
def test_a_built_topology_keeps_its_draw():
    """It is refused by a verifier that cannot take the draw it was built with."""
    topology = static.topology(kit.SMALL_TREE, base.POINT)
    method = Method(Spec("drafters/model"), topology=topology)
    assert kit.generate(method, 0.0).tokens == kit.generate(Method(), 0.0).tokens
    rejection = Method(method.drafter, Spec("verifiers/spectr"), topology)
    with pytest.raises(MethodError, match="choose another verifier"):
        kit.generate(rejection, 0.8)
    matching = Method(method.drafter, sample_then_match.verifier(), topology)
    assert kit.generate(matching, 0.8).guarantee == base.LAW


def no_repeats(logits, tokens, length):
    """Forbid the token before the last."""
    return logits.at[tokens[jnp.maximum(length - 2, 0)]].set(-jnp.inf)


def blind(logits, tokens, length):
    """Planted: the same of the prompt's first token."""
    return logits.at[tokens[0]].set(-jnp.inf)


def test_a_function_is_a_transform():
    """In plain decoding and under drafts, where its text is the node's."""
    plain = kit.generate(Method(transforms=(no_repeats,)), 0.8)
    tree = kit.spec("drafters/token_recycling", choices=kit.SMALL_TREE)
    drafted = kit.generate(Method(tree, transforms=(no_repeats,)), 0.8)
    assert drafted.tokens == plain.tokens and drafted.stats.tokens_per_call > 1
    for prompt, text in zip(kit.PROMPTS, plain.tokens):
        whole = [*prompt, *text]
        at = range(max(len(prompt), 2), len(whole))
        assert all(whole[i] != whole[i - 2] for i in at)
    assert kit.generate(Method(transforms=(blind,)), 0.8).tokens != plain.tokens
    again = kit.generate(Method(transforms=(no_repeats,)), 0.8)
    assert again.stats.compile_seconds == 0


@pytest.mark.parametrize("value", [7, "top_k", min_p, object])
def test_strangers_are_no_parts(value):
    with pytest.raises(MethodError, match="is no part of transforms"):
        Method(transforms=(value,))
    with pytest.raises(MethodError, match="is no part of drafters"):
        Method(top_k.transform(2))


def test_no_config_names_a_built_part():
    with pytest.raises(MethodError, match="a config names parts"):
        Method(transforms=(no_repeats,)).to_config()
    with pytest.raises(MethodError, match="takes no arguments"):
        Method(prompt_lookup.drafter()).with_drafter(k=3)
    assert built.part(Spec("drafters/plain"), "drafters") == Spec("drafters/plain")


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("transforms/min_p(p=0.1)", Spec("transforms/min_p", p=0.1)),
        ("a.b", Spec("a.b")),
        ("a.b(x=(1, 2), y='z')", Spec("a.b", x=(1, 2), y="z")),
    ],
)
def test_specs_are_parsed(text, spec):
    assert Spec.parse(text) == spec


@pytest.mark.parametrize("text", ["a.b(3)", "a.b(x=", "a.b(x=f())"])
def test_bad_specs(text):
    with pytest.raises(MethodError, match="name\\(argument=literal"):
        Spec.parse(text)
