"""The search of a method and its rewards, built and checked."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from decoding import base
from decoding.catalogue import Part, Spec
from decoding.hypotheses.drafts import Lanes
from decoding.hypotheses.nodes import ALL, Select
from decoding.hypotheses.prefill import Prefill
from decoding.hypotheses.rank import Rank
from decoding.hypotheses.reward import Reward
from decoding.loops import search_state
from decoding.method import PLAIN, Method
from models.errors import MethodError


class Parts(NamedTuple):
    """A search as a program has it; None without one, or of the other kind."""

    select: Select | None = None
    rank: Rank | None = None
    reward: Reward | None = None
    prefill: Prefill | None = None
    lanes: Lanes | None = None
    texts: base.Drafter | None = None

    @property
    def search(self) -> Select | Rank | Prefill | None:
        """Whichever there is."""
        return self.select or self.rank or self.prefill


def build(
    method: Method,
    available: Mapping[str, Any],
    temperature: Any,
    drafter: base.Drafter,
    lanes: Lanes | None = None,
) -> Parts:
    """Build the search of a method.

    Args:
        method: its search may be None.
        available: what factories may need; see `Card.needs`.
        temperature: one number, or one a prompt.
        drafter: the method's, or plain decoding's.
        lanes: the method's drafts for the lanes of a search.

    Raises:
        MethodError: a reward without a search, or a search that lacks one; parts that
            a search cannot have beside it.
    """
    reward: Reward | None = None
    for part in method.rewards:
        inner = {} if reward is None else {"inner": reward}
        reward = part.build({**available, **inner})
        if reward is not None and inner and "inner" not in part.card.needs:
            raise MethodError(
                f"{part.name} values texts by itself: give one reward, and after it "
                "those that wrap it, such as rewards/calibrated"
            )
    if method.search is None:
        if reward is not None:
            raise MethodError(
                f"{method.rewards[0].name} and no search that chooses by it: use a "
                "method such as best_of_n"
            )
        _check_rows(method, lanes)
        return Parts()
    if method.search.card.kind == "procedure":
        raise MethodError(
            f"{method.search.name} is a loop over decoding.generate, and no program: "
            "call generate, or leave the search out"
        )
    found = method.search.build(available)
    if method.search.card.kind:
        _check_rows(method, lanes)
    if method.search.card.kind == "prefill":
        _check_prefill(method, available)
        return Parts(prefill=found)
    if found.rewarded and reward is None:
        raise MethodError(
            f"{method.search.name} chooses by a reward: pass reward=, a Spec of "
            "rewards/ or a function of a list of texts"
        )
    if getattr(found, "valued", False) and (reward is None or reward.node is None):
        raise MethodError(
            f"{method.search.name} needs a reward with a value for every node, such as "
            "rewards/value_head or rewards/reward_model"
        )
    if method.search.card.kind == "rank":
        return Parts(rank=found, reward=reward)
    texts = None
    if lanes is None and method.drafter not in (None, PLAIN):
        texts = drafter
    if lanes is not None or texts is not None:
        _check_drafts(method, found, texts)
    _check(method, found, temperature)
    if found.mixes and available["model"].embed_rows is None:
        raise MethodError(
            f"{method.search.name} mixes rows of the embedding table, and this model "
            "has none: use a transformer"
        )
    return Parts(found, reward=reward, lanes=lanes, texts=texts)


def streams(found: Parts, others: Mapping[str, Any]) -> dict[str, Any]:
    """Return the models that run on a tree's nodes: of rewards, and of drafts."""
    if found.select is None:
        return {}
    own: dict[str, Any] = {}
    if found.reward is not None and found.reward.stream is not None:
        own["reward"] = found.reward.stream
    if found.lanes is not None:
        own["draft"] = base.Stream(found.lanes.model, "draft")
    for name in own:
        if name in others:
            raise MethodError(
                f"streams={{{name!r}: ...}} beside a {name} model, which is that "
                "stream: give it another name"
            )
    return own


def drafter(found: Parts) -> base.Drafter:
    """Return what reads the prompts of a search by a tree."""
    assert found.select is not None
    own = found.texts or PLAIN.build({})
    if found.select.read is not None:
        return search_state.reader(found.select, own)
    return own


def _check_rows(method: Method, lanes: Lanes | None) -> None:
    """Refuse a drafter of lanes where there are none."""
    if lanes is not None:
        assert method.drafter is not None
        raise MethodError(
            f"{method.drafter.name} drafts for the lanes of a search by a tree: add "
            "such a search, as search/beam, or use drafters/model"
        )


def _check_drafts(method: Method, select: Select, texts: base.Drafter | None) -> None:
    """Refuse drafters and searches that do not go together."""
    assert method.search is not None and method.drafter is not None
    names = f"{method.search.name} and {method.drafter.name}"
    if select.holds == ALL or select.mixes:
        raise MethodError(
            f"{names}: drafts hang under lanes that run new leaves, and this search "
            "runs any node; leave the drafter out"
        )
    if texts is not None and not texts.reads_text:
        raise MethodError(
            f"{names}: the drafter keeps more of a row than its text, which a search "
            "would have to copy when it reorders; use drafters/lane_model for a draft "
            "model, or one that reads texts, such as drafters/prompt_lookup"
        )


def _check_prefill(method: Method, available: Mapping[str, Any]) -> None:
    """Refuse what a changed cache cannot have beside it."""
    assert method.search is not None
    name = method.search.name
    beside: list[Part] = [*method.rewards]
    beside += [] if method.exit is None else [method.exit]
    beside += [] if method.policy == Spec("caches/dense") else [method.policy]
    if beside:
        raise MethodError(
            f"{name} and {beside[0].name}: it changes the full cache of the whole "
            "model and reads no reward; leave the other part out"
        )
    if available["model"].plan is not None:
        raise MethodError(f"{name} runs on one device: load the model without mesh=")


def _check(method: Method, select: Select, temperature: Any) -> None:
    """Refuse what a search by a tree cannot have beside it."""
    assert method.search is not None
    name = method.search.name
    roles = ("verifier", "topology", "exit")
    beside: list[Part] = [
        part for role in roles if (part := getattr(method, role)) is not None
    ]
    if method.policy != Spec("caches/dense"):
        beside.append(method.policy)
    if beside:
        raise MethodError(
            f"{name} and {beside[0].name}: a search keeps its hypotheses in the full "
            "cache and takes transforms and drafts alone; leave the other part out"
        )
    if method.rewards and not select.rewarded:
        raise MethodError(
            f"{name} chooses by likelihood and reads no reward: leave "
            f"{method.rewards[0].name} out"
        )
    if np.any(np.asarray(temperature) > 0) and not select.samples:
        raise MethodError(
            f"temperature={temperature} with {name}, which draws nothing: use "
            "temperature=0, or an argument that makes it sample"
        )
