"""The recipe of published heads: what it measures, and what it expects."""

import pytest

from configs.methods import dspark_qwen3_4b as recipe
from experiments.recipes import settings
from experiments.studies import common, evaluate
from models.errors import ConfigError

PATH = "configs/methods/dspark_qwen3_4b.py"


@pytest.mark.parametrize(
    ("task", "tau"), [("gsm8k", 6.11), ("math500", 5.70), ("humaneval", 5.38)]
)
def test_the_recipe_expects_the_paper_s_figure(task, tau):
    """Of the one row beside plain decoding, whose figure is found and graded."""
    c = settings.load(f"{PATH}:{task}")
    named = common.methods(c)
    evaluate.check(c, named)
    cells = {cell.key: cell for cell in evaluate.table(c, named)}
    assert len(cells) == 2
    ((key, figures),) = c.expected
    assert cells[key].name == recipe.NAME and figures == {"tokens_per_call": tau}
    graded = lambda x: evaluate._expect({"key": key, "tokens_per_call": x}, c)["within"]
    assert graded(0.95 * tau) == {"tokens_per_call": True}
    assert graded(0.9 * tau) == {"tokens_per_call": False}  # planted: too far
    assert c.chat_variables.to_dict() == {"enable_thinking": False}
    assert c.data.endswith(f"{task}.jsonl")


def test_another_task_is_refused():
    with pytest.raises(ConfigError, match="aime"):
        recipe.get_config("aime")
