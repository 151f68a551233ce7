"""A small vocabulary, trained."""

import pytest

from experiments.studies.constraint_vocabularies import Trained
from training.data import train_bpe


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    file = tmp_path_factory.mktemp("vocabulary") / "tokenizer.json"
    made = train_bpe.train(['{"name": "abc", "names": [1, 2]}\n' * 20], 265)
    file.write_text(made.to_str())
    return Trained(265, str(file), (0,))
