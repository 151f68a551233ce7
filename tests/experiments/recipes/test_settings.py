"""Recipes, overrides and their errors."""

import inspect
import pathlib

import pytest

import configs
from decoding import catalogue
from decoding.catalogue import Spec
from experiments import run
from experiments.prompts import builtin_tasks
from experiments.recipes import settings
from experiments.studies import common, evaluate
from models.errors import ConfigError, MethodError

RECIPES = sorted(
    str(path.relative_to(pathlib.Path(configs.__file__).parent))
    for path in pathlib.Path(configs.__file__).parent.glob("**/*.py")
    if path.stem != "__init__" and path.parent.stem not in ("base", "trees")
)

RECIPE = """
import ml_collections

def get_config():
    config = ml_collections.ConfigDict()
    config.methods = ("plain", "copyspec")
    config.prompts = 3
    return config
"""


@pytest.fixture
def recipe(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(RECIPE)
    return f"--config={file}"


def test_recipe_over_defaults_and_overrides(recipe):
    config, rest = settings.resolve(
        [
            recipe,
            "--config.repeats=5",
            "--config.temperatures=(0.5,)",
            "--config.drafts.draft=other",
            "--workdir=w",
        ]
    )
    assert config.prompts == 3 and config.methods == ("plain", "copyspec")
    assert config.repeats == 5 and config.temperatures == (0.5,)
    assert config.drafts.draft == "other"
    assert config.max_new_tokens == 128  # a default
    assert rest == ["--workdir=w"]


def unbound(spec):
    """Arguments that a factory does not know, and parameters that nobody gives."""
    factory = catalogue.FACTORIES[spec.name.split("/")[0]]
    known = inspect.signature(getattr(spec.module, factory)).parameters
    asked = {n for n, p in known.items() if p.default is p.empty}
    given = {*spec.arguments}
    return given - {*known}, asked - given - {*spec.card.needs}


def short_of_texts(config):
    """Whether a recipe asks for more free texts than the project has."""
    given = config.get("data", "")
    if (isinstance(given, str) and given) or not {"text"} & {*config.get("tasks", ())}:
        return False
    return config.prompts > len(builtin_tasks.TEXTS.read_text().splitlines())


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_has_its_texts(name):
    assert not short_of_texts(settings.load(f"configs/{name}"))


def test_fault_more_texts_than_there_are():
    config = settings.load("configs/studies/vocab_trim.py")
    config.prompts = 16
    assert short_of_texts(config)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_loads_and_names_methods_that_exist(name):
    config = settings.load(f"configs/{name}")
    if config.get("stage", "evaluate") != "evaluate":
        return
    named = common.methods(config)
    if config.tasks:  # else those of a file that is given
        evaluate.check(config, named)
    for method in named.values():
        parts = (method.drafter, method.topology, method.verifier, *method.transforms)
        for spec in filter(None, parts):
            assert unbound(spec) == (set(), set()), spec


def test_fault_an_argument_that_no_factory_has():
    wrong = Spec("drafters/del_exit", exit=(2,))
    assert unbound(wrong) == ({"exit"}, set())
    assert unbound(Spec("drafters/rest")) == (set(), {"datastore"})


def test_typo_names_siblings(recipe):
    with pytest.raises(ConfigError, match=r"'promts'.*'prompts'"):
        settings.resolve([recipe, "--config.promts=3"])
    with pytest.raises(ConfigError, match=r"config.drafts has no field 'daft'"):
        settings.resolve(
            [recipe, "--config.daft.x=3", "--config.drafts.daft=3"][:1]
            + ["--config.drafts.daft=3"]
        )


@pytest.mark.parametrize(
    "arguments",
    [["--config.prompts=many"], ["--config.prompts"], ["--config.seed=1.5"]],
)
def test_wrong_values(recipe, arguments):
    with pytest.raises(ConfigError):
        settings.resolve([recipe, *arguments])


def test_missing_file_and_flag(tmp_path):
    with pytest.raises(ConfigError, match="give one"):
        settings.resolve(["--workdir=w"])
    with pytest.raises(ConfigError, match="no such file"):
        settings.resolve([f"--config={tmp_path}/absent.py"])


def test_wrong_stage(tmp_path):
    file = tmp_path / "odd.py"
    file.write_text(RECIPE.replace("config.prompts = 3", "config.stage = 'bake'"))
    with pytest.raises(ConfigError, match=r"odd.py: stage='bake'.*'evaluate'"):
        settings.load(file)


def test_single_method_recipe_is_evaluated_against_plain():
    config = settings.load("configs/methods/token_recycling.py")
    assert config.methods == ("plain", "token_recycling")
    assert config.stage == "evaluate"


def test_a_method_recipe_outside_configs_is_evaluated(tmp_path):
    """Planted: looked up by its name, there is no such recipe."""
    file = tmp_path / "mine.py"
    methods = 'config.methods = ("plain", "copyspec")'
    method = 'config.method = {"drafter": "drafters/foreal"}'
    assert methods in RECIPE
    file.write_text(RECIPE.replace(methods, method))
    config = settings.load(file)
    named = common.methods(config)
    assert [*named] == ["plain", "mine"] and named["plain"].drafter is None
    assert named["mine"].drafter == Spec("drafters/foreal")
    config = settings.override(config, ["--config.method.drafter=drafters/copyspec"])
    assert common.methods(config)["mine"].drafter == Spec("drafters/copyspec")
    with config.unlocked():
        del config.method
    with pytest.raises(MethodError, match="no recipe 'mine'"):
        common.methods(config)


def test_shipped_recipes_load():
    assert "token_recycling" in settings.load("configs/quickstart.py").methods
    assert (
        settings.load("configs/studies/hf_transformers.py").stage == "hf_transformers"
    )


def test_command_line_explains_itself(recipe, capsys):
    assert run.main([recipe]) == 2
    assert "--workdir" in capsys.readouterr().err
    assert run.main(["--help"]) == 0


def test_diff():
    old, new = {"a": 1, "b": {"c": [1, 2]}}, {"a": 1, "b": {"c": [1, 3]}, "d": 4}
    lines = settings.diff(old, new)
    assert lines == ["b.c: [1, 2] -> [1, 3]", 'd: "(absent)" -> 4']
    assert settings.diff(old, new, free=("b", "d")) == []
