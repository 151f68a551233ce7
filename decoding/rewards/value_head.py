"""A value head: a linear function of the target's own state at the last token.

As the critics of Yang, Klein, *FUDGE: Controlled Text Generation With Future
Discriminators*, 2021, arXiv 2104.05218, section 3, on a state of the target in place of
a model of its own. With h_t the state of `tap` at the text's token t,

    v_t = w . h_t + b

w, b are `drafts={"reward": params}` (models/predictors/value_predictor.py).

Deviations: the paper's discriminators are models of their own and classify; this one is
a number. Cost: one product over [D] a node, in the round's own call.
"""

from typing import Any

from jax import Array

from decoding import base
from decoding.catalogue import Card
from decoding.hypotheses.reward import PREFIX, Reward
from models.base import LanguageModel
from models.predictors import value_predictor

CARD = Card(
    paper="FUDGE, arXiv 2104.05218",
    guarantee=base.LOSSY,
    family="trained",
    needs=("model", "reward"),
    trained=True,
    sources=("yang2021fudge",),
)


def reward(model: LanguageModel, reward: Any, tap: Any = "norm") -> Reward:
    """Value texts by a head on the target.

    Args:
        model: the target.
        reward: the head's params.
        tap: the state that the head was trained on: "norm", or a layer's number.
    """
    value_predictor.check(reward, model.config.d_model)

    def node(params: base.Params, state: base.State, hidden: dict) -> Array:
        return value_predictor.value(params["reward"], hidden[tap])

    return Reward(node=node, level=PREFIX, taps=(tap,))
