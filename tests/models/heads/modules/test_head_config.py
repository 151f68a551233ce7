"""models/heads/modules/head_config.py: configs stay beside the params they are of."""

import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.errors import CheckpointError
from models.heads import eagle, eagle3, falcon, hydra, medusa
from models.heads.formats import native
from models.heads.modules import head_config

KEY = jax.random.key(0)
TARGET = types.SimpleNamespace(d_model=4, vocab_size=8, max_positions=16)
ROWS = jnp.ones((8, 4))
FORMS = {
    "eagle": lambda: eagle.init(KEY, TARGET, bias=False),
    "eagle3": lambda: eagle3.init(KEY, TARGET, ROWS, np.arange(1, 5)),
    "falcon": lambda: falcon.init(KEY, TARGET),
    "hydra": lambda: hydra.init(KEY, TARGET, ROWS, 2, prefix=True, deep=True),
    "medusa": lambda: medusa.init(KEY, TARGET, None, 2),
}


@pytest.mark.parametrize("head", FORMS)
def test_it_is_saved_and_read(head, tmp_path):
    """And of a file without one, as before 0.2, the params' keys give the same."""
    params = FORMS[head]()
    native.save(tmp_path, params, {"head": head})
    read = native.load(tmp_path)
    assert jax.tree.structure(read) == jax.tree.structure(params)
    form = head_config.split(read)[1]
    assert form == head_config.split(params)[1] and list(form) == [""]

    about = json.loads((tmp_path / native.CONFIG).read_text())
    older = {name: value for name, value in about.items() if name != "configs"}
    (tmp_path / native.CONFIG).write_text(json.dumps(older))
    bare = native.load(tmp_path)
    assert head_config.CONFIG not in bare
    module = __import__(f"models.heads.{head}", fromlist=["config_of"])
    assert module.config_of(bare) == form[""]


def test_it_is_no_leaf_but_shapes_the_program():
    """A map over the params keeps it; another form is another program."""
    params = FORMS["hydra"]()
    twice = jax.tree.map(lambda x: 2 * x, params)
    assert hydra.config_of(twice) == hydra.config_of(params)
    traces = []
    run = jax.jit(lambda own: traces.append(hydra.config_of(own).deep))
    run(params)
    run(twice)
    assert traces == [True]
    other = {**params, head_config.CONFIG: hydra.HeadConfig(prefix=True)}
    run(other)
    assert traces == [True, False]


def test_configs_below_others_come_back():
    params = {"heads": FORMS["eagle"](), "lora": {"a": jnp.ones(2)}}
    bare, configs = head_config.split(params)
    assert list(configs) == ["heads"] and head_config.CONFIG not in bare["heads"]
    whole = head_config.joined(bare, configs)
    assert jax.tree.structure(whole) == jax.tree.structure(params)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"head": "ouija"}, "head='ouija' is none of"),
        ({"depth": 3}, "does not fit eagle heads"),
        ({"bias": True}, "bias=True, and the params have False"),  # planted
    ],
)
def test_a_config_of_other_heads_is_refused(change, words, tmp_path):
    native.save(tmp_path, FORMS["eagle"](), {"head": "eagle"})
    file = tmp_path / native.CONFIG
    about = json.loads(file.read_text())
    about["configs"][""] |= change
    file.write_text(json.dumps(about))
    with pytest.raises(CheckpointError, match=words):
        native.load(tmp_path)
