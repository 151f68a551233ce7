"""Random configs, overrides and sweeps: refused in our words, or as they say.

Every case ends in one of the project's errors or in an answer that is checked against
the input; nothing else may come out. A few dozen cases of each kind run always, 10^5 of
all kinds with `-m long`; DECODAX_FUZZ_SUMMARY names a file that is told the counts.
"""

import contextlib
import io
import pathlib

import numpy as np
import pytest
from hypothesis import strategies as st

from decoding import Method, compose
from decoding.conformance import kit
from experiments.launch import sweep
from experiments.recipes import settings
from models.errors import ConfigError
from tests.stress.fuzz.survey import cases, survey

ROOT = pathlib.Path(__file__).parents[3]


RECIPES = (
    "quickstart",
    "language_models/tiny",
    "heads/eagle",
    "prompt_set",
    "predictors/specdec_pp",
    "replay",
)


def fields(config, prefix="") -> list[str]:
    found = []
    for name, value in config.items():
        found.append(prefix + name)
        if isinstance(value, settings.ConfigDict):
            found += fields(value, f"{prefix}{name}.")
    return found


LOADED = {n: settings.load(ROOT / f"configs/{n}.py") for n in RECIPES}
FIELDS = {name: fields(config) for name, config in LOADED.items()}
LITERALS = st.one_of(
    st.text(max_size=8),
    st.integers(-(2**70), 2**70).map(str),
    st.floats().map(repr),
    st.sampled_from(
        ["True", "no", "None", "()", "(1,", "('a',)", "1e999", "{}", "[1]"]
    ),
    st.sampled_from(["(" * 300, "((1, 2), 3)", "'", "\\", "\0", "--config=", "0x1F"]),
)


@st.composite
def overrides(draw):
    recipe = draw(st.sampled_from(RECIPES))
    given = []
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.one_of(st.sampled_from(FIELDS[recipe]), st.text(max_size=6)))
        tail = draw(st.sampled_from(["", "", "", ".x", ".", "[0]"]))
        given.append(f"--config.{name}{tail}={draw(LITERALS)}")
    return recipe, given


def overridden(case) -> None:
    """What was not named is as it was; numbers are those that were given."""
    recipe, given = case
    config = settings.ConfigDict(LOADED[recipe])
    with contextlib.redirect_stderr(io.StringIO()):
        new = settings.override(config, given)
    named = [g.removeprefix("--config.").partition("=")[0] for g in given]
    before = settings.flat(LOADED[recipe].to_dict())
    after = settings.flat(new.to_dict())
    for name in {*before, *after}:
        if not any(name == n or name.startswith(f"{n}.") for n in named):
            assert repr(before[name]) == repr(after[name]), (name, given)
    last = dict(zip(named, (g.partition("=")[2] for g in given)))
    for name, value in last.items():
        old = before.get(name)
        if type(old) is int and repr(after[name]) != repr(old):
            assert after[name] == int(value, 0), (name, value)
        if type(old) is float and repr(after[name]) != repr(old):
            assert repr(after[name]) == repr(float(value)), (name, value)


@cases(60, 40_000)
def test_overrides(count):
    found = survey("overrides", count, overrides(), overridden)
    assert min(found["refused"], found["accepted"]) > count // 30


def test_fault_an_override_of_another_field(monkeypatch):
    """Planted: a name is cut at its first dot, so that its neighbour is set."""
    sound = settings.override

    def hasty(config, arguments):
        out = sound(config, arguments)
        with out.unlocked():
            out.seed = 77
        return out

    monkeypatch.setattr(settings, "override", hasty)
    with pytest.raises(AssertionError):
        overridden(("quickstart", ["--config.prompts=3"]))


BODIES = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        [
            "def get_config(): return 1",
            "def get_config(): return open('/nonexistent')",
            "def get_config(x): return x",
            "get_config = 3",
            "def get_config(): raise SystemExit(3)",
            "import ml_collections\nget_config = ml_collections.ConfigDict",
            "import ml_collections\n"
            "def get_config():\n"
            "    return ml_collections.ConfigDict({'stage': ['a']})",
            "import ml_collections\n"
            "def get_config():\n"
            "    return ml_collections.ConfigDict({'prompts': 'many', 'seed': None})",
            "import ml_collections\n"
            "def get_config():\n"
            "    return ml_collections.ConfigDict({'method': {'drafter': 4}})",
        ]
    ),
)


@cases(30, 5_000)
def test_recipes(count, tmp_path):
    file = tmp_path / "recipe.py"

    def attempt(body) -> None:
        file.write_text(body, encoding="utf-8", errors="surrogatepass")
        config = settings.load(file)
        assert isinstance(config, settings.ConfigDict)

    found = survey("recipes", count, BODIES, attempt)
    assert found["refused"] > count // 3


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=6),
        st.sampled_from(["drafters/plain", "drafters/model", "topologies/chain"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["name", "drafter", "topology", "verifier", "k", "length"])
            | st.text(max_size=4),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=6,
)


@cases(60, 15_000)
def test_methods_of_a_config(count):
    def attempt(value) -> None:
        method = Method.from_config(value)
        compose.compose(method, kit.TARGET, 0.8)

    survey("methods", count, VALUES, attempt)


@cases(60, 10_000)
def test_sweeps(count):
    """Points are as many as the product of the values, each in a folder of its own."""
    value = st.one_of(st.integers(-9, 9).map(str), st.text("12,('a)[]", max_size=6))
    field = st.builds(
        "{}={}".format,
        st.sampled_from(["seed", "prompts", "tasks", "drafts.draft", "absent", ""]),
        st.lists(value, max_size=3).map(",".join),
    )

    def attempt(sweeps) -> None:
        with contextlib.redirect_stderr(io.StringIO()):
            runs = sweep.points(str(ROOT / "configs/quickstart.py"), "w", [], sweeps)
        sizes = [len(sweep.split(s.partition("=")[2])) for s in sweeps]
        assert len(runs) == np.prod(sizes, dtype=int)
        assert len({r.workdir for r in runs}) == len(runs)

    survey("sweeps", count, st.lists(field, max_size=2), attempt)


def test_a_recipe_s_own_failure_is_named(tmp_path):
    file = tmp_path / "recipe.py"
    file.write_text("def get_config(): return 1 / 0")
    with pytest.raises(ConfigError, match=r"recipe.py: ZeroDivisionError"):
        settings.load(file)
