"""A reward model: a transformer with a scalar head, read as the text is written.

Stiennon, Ouyang, Wu, Ziegler, Lowe, Voss, Radford, Amodei, Christiano, *Learning to
Summarize from Human Feedback*, 2020, arXiv 2009.01325, section 3.4. With h_t the reward
model's last state at the text's token t, after its norm,

    v_t = w . h_t        a text's worth: v of its last token

It runs as a stream on the same nodes as the target, so that every node has a value and
no text is read twice. `drafts={"reward": models.load(...)}` is the model; checkpoints
for sequence classification with one label load, their `score.weight` is w.

Deviations: the reward model must have the target's vocabulary; one of another tokenizer
is a Python function. Cost: one node of the reward model for each of the target's.
"""

from jax import Array

from decoding import base
from decoding.catalogue import Card
from decoding.hypotheses.reward import PREFIX, Reward
from models.base import LanguageModel
from models.errors import MethodError

CARD = Card(
    paper="Reward models, arXiv 2009.01325",
    guarantee=base.LOSSY,
    family="trained",
    needs=("reward",),
    trained=True,
    sources=("stiennon2020learning",),
)


def reward(reward: LanguageModel) -> Reward:
    """Value texts by a reward model.

    Args:
        reward: the model.
    """
    if not isinstance(reward, LanguageModel):
        raise MethodError(
            "drafts={'reward': ...} is no model: give models.load(...) of a checkpoint "
            "for sequence classification"
        )

    def node(params: base.Params, state: base.State, hidden: dict) -> Array:
        return reward.head(params["reward"], hidden["norm"])[..., 0]

    stream = base.Stream(reward, "reward")
    return Reward(node=node, level=PREFIX, taps=("norm",), stream=stream)
