"""Methods by name: recipes, method files and paths; what a method is written as."""

import pytest

import decoding
from decoding import Method, Spec, base, recipes
from decoding.conformance import kit, transforms
from decoding.loops import engines
from models.errors import MethodError

MINE = """
import ml_collections

def get_config():
    config = ml_collections.ConfigDict()
    config.method = {method}
    return config
"""


def written(tmp_path, method: str) -> str:
    path = tmp_path / "mine.py"
    path.write_text(MINE.format(method=method))
    return str(path)


def test_a_recipe_comes_before_a_head_and_a_file():
    """`rest` is a recipe and a drafter; `eagle` a head's recipe and a drafter."""
    rest, eagle = recipes.method("rest").drafter, recipes.method("eagle")
    assert rest is not None and rest.arguments != {}
    assert eagle == recipes.method("heads/eagle") != Method(Spec("drafters/eagle"))


def test_the_plain_name_is_the_paper():
    """`eagle2` has heads; the draft model with EAGLE-2's tree goes by another name."""
    assert "heads" in recipes.method("eagle2").needs
    assert "draft" in recipes.method("model_eagle2").needs
    assert "heads" not in recipes.method("model_eagle2").needs


@pytest.mark.parametrize("name", ["eagle_gap", "heads/eagle_gap", "heads/compare"])
def test_a_recipe_without_a_method_is_refused(name):
    with pytest.raises(MethodError, match=r"names no method.*'eagle2'"):
        decoding.generate(kit.TARGET, [[1]], method=name)


def test_fault_a_recipe_without_a_method_decodes_plainly(monkeypatch):
    """Planted: whether a `method` field exists is asked, not what it names."""
    monkeypatch.setattr(recipes, "_names_a_part", lambda config: "method" in config)
    assert not recipes.config("eagle_gap").method
    assert "eagle_gap" in recipes.names()
    with pytest.raises(MethodError, match="at least one part"):
        recipes.method("eagle_gap")  # the second lock


@pytest.mark.parametrize("name", recipes.names())
def test_every_named_recipe_resolves(name):
    assert recipes.method(name).parts or name == "plain"


def test_a_file_at_its_defaults():
    """Each folder's file fills its own role."""
    assert recipes.method("foreal") == Method(Spec("drafters/foreal"))
    assert recipes.method("drafters/eagle") == Method(Spec("drafters/eagle"))
    assert recipes.method("dense") == Method(policy=Spec("caches/dense"))
    contrastive = Method(transforms=(Spec("transforms/contrastive"),))
    assert recipes.method("contrastive") == contrastive


def test_a_file_without_defaults_names_its_arguments():
    with pytest.raises(MethodError, match=r"no default for \['k'\]: put Spec"):
        recipes.method("top_k")
    assert recipes.method("drafters/model").drafter == Spec("drafters/model")
    assert Spec("transforms/top_k", k=3).required == []


def test_fault_a_file_before_a_recipe(monkeypatch):
    """Planted: files are searched first, and a recipe's settings are lost."""
    sound = recipes.method("rest")
    monkeypatch.setattr(recipes, "FOLDERS", ())
    with pytest.raises(MethodError, match="datastore"):
        recipes.method("rest")
    assert recipes.method("copyspec") != sound


def test_a_name_that_means_nothing():
    for name in ("nothing", "heads/nothing", "drafters/nothing", "verifiers/judge"):
        with pytest.raises(MethodError, match=rf"{name}.*'token_recycling'"):
            recipes.method(name)


def test_a_recipe_anywhere(tmp_path):
    path = written(tmp_path, '{"drafter": {"name": "drafters/prompt_lookup", "k": 4}}')
    assert recipes.method(path) == Method(Spec("drafters/prompt_lookup", k=4))
    out = decoding.generate(kit.TARGET, [[1, 2, 1]], path, max_new_tokens=8)
    assert out.tokens == decoding.generate(kit.TARGET, [[1, 2, 1]], "plain", 8).tokens


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("{}", "names no method"),
        ('{"train": 1}', "names no method"),
        ('{"drafter": None, "drafts": 2}', "a method has no"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_wrong_recipe_anywhere(tmp_path, method, said):
    with pytest.raises(MethodError, match=said):
        recipes.method(written(tmp_path, method))


def test_no_recipe_there(tmp_path):
    with pytest.raises(MethodError, match="no such file"):
        recipes.method(str(tmp_path / "absent.py"))
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(MethodError, match="get_config"):
        recipes.method(str(tmp_path / "empty.py"))


def test_no_drafter_is_plain_decoding():
    """The same program as the drafter that drafts nothing; planted: one that drafts."""
    absent, named = Method(), Method(Spec("drafters/plain"))
    assert recipes.method("plain") == absent
    assert key(absent) == key(named)
    assert key(absent) != key(Method(kit.spec("drafters/prompt_lookup")))
    assert absent.parts == (Spec("caches/dense"),) and not absent.needs
    assert absent.to_config() == {"policy": {"name": "caches/dense"}, "transforms": []}


def test_parts_that_were_built_by_hand_stand_in_lists():
    """Planted: a part of another kind."""
    for field, part in (
        ("schedule", Spec("diffusion/llada").build({})),
        ("transforms", Spec("transforms/min_p", p=0.1).build({})),
        ("rewards", Spec("rewards/length", target=3).build({})),
    ):
        (built,) = getattr(Method(**{field: (part,)}), field)
        assert built.build({}) is part
        with pytest.raises(MethodError, match="is no part of"):
            Method(**{field: (base.WHOLE,)})


def test_a_topology_without_a_drafter_is_refused():
    method = Method(topology=kit.spec("topologies/chain"))
    with pytest.raises(MethodError, match="drafters/plain has no use for topology"):
        decoding.compose.compose(method, kit.TARGET)


# Another value of the data that is no number, which the contract varies.
OTHER = {
    "bias": ((3, 1.0), (4, 2.0)),
    "pattern": "(b|a|d[a-e]|c+|e|f)*",  # as many states and classes
}


def same_program(factory, first: dict, second: dict) -> bool:
    return transforms.program(factory(**first)) == transforms.program(factory(**second))


@pytest.mark.parametrize("spec", kit.transforms(), ids=lambda spec: spec.name)
def test_data_of_a_transform_only_fills_arrays(spec):
    for name in {*spec.card.data} & {*OTHER}:
        other = Spec(spec.name, **{**spec.arguments, name: OTHER[name]})
        built = (lambda s: s.build(kit.PARTS)), {"s": spec}, {"s": other}
        assert other != spec and same_program(*built), name


def test_fault_a_number_in_the_program():
    """Planted: a factory whose number is a constant of what is compiled."""

    def factory(p):
        init = lambda tokens, length: base.State()
        return base.LogitsTransform(init, lambda state, logits, aux: logits * p)

    assert not same_program(factory, {"p": 2.0}, {"p": 3.0})


def key(method: Method, temperature: float = 0.8):
    return decoding.compose.compose(method, kit.TARGET, temperature).key


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("top_p", [{"p": 1}, {"p": 1.0}, {"p": 0.5}]),
        ("top_k", [{"k": 3}, {"k": 5}]),
        ("repetition_penalty", [{"penalty": 1}, {"penalty": 1.5}]),
        ("logit_bias", [{"bias": ((1, 0.5),)}, {"bias": ((2, 1),)}]),
        ("temperature", [{"temperature": 1}, {"temperature": 0.5}]),
    ],
)
def test_data_shares_a_program(name, values, monkeypatch):
    """The type of a number does not matter; planted: floats alone are data."""
    methods = [Method(transforms=(Spec(f"transforms/{name}", **v),)) for v in values]
    heat = 0.0 if name == "temperature" else 0.8
    assert len({key(method, heat) for method in methods}) == 1
    by_type = lambda spec: tuple(
        x for x in spec.arguments.items() if type(x[1]) is not float
    )
    monkeypatch.setattr(Spec, "static", property(by_type))
    assert len({key(method, heat) for method in methods}) > 1


def test_all_other_arguments_shape_the_program():
    short, long = (kit.spec("drafters/copyspec", copy=n) for n in (2, 3))
    assert key(Method(short)) != key(Method(long))
    names = {"amateur": "a"}, {"amateur": "b"}
    one, two = (Spec("transforms/contrastive", **x).static for x in names)
    assert one != two
    ban = lambda *bans: Spec("transforms/ban_tokens", bans=bans).static
    assert ban(1) != ban((1, 2))


def test_a_number_written_as_an_integer_compiles_nothing():
    """Through the compiler: p = 1 and 0.5 in one program, other lengths in two."""

    def compiled() -> int:
        return sum(len(d._compiled) for d in engines._ENGINES.values())

    def run(spec: Spec, drafter: Spec | None = None) -> None:
        method = Method(drafter, transforms=(spec,))
        decoding.generate(kit.TARGET, [[1, 2]], method, 4, 0.8)

    run(Spec("transforms/top_p", p=0.5))
    before = compiled()
    run(Spec("transforms/top_p", p=1))
    run(Spec("transforms/top_p", p=1.0))
    assert compiled() == before
    run(Spec("transforms/top_p", p=1), kit.spec("drafters/copyspec", copy=2))
    assert compiled() > before
