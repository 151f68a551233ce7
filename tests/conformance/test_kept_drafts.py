"""Drafts keep plain decoding's text under the same cache policy, greedy and sampled.

On the peaked transformer, ragged rows and rows alone, by a draft tree, by the target as
its own draft (whose drafts are all accepted, but for rounds that are cut), and at T =
0.8 with the position's noise.
"""

import numpy as np
import pytest

from decoding import Method, Spec, catalogue, compose
from decoding.conformance import exits, kept_caches, kit, peaked
from decoding.loops import engines
from decoding.serving import continuous_batching

pytestmark = [pytest.mark.kv, pytest.mark.long]

NAMES = [name for name in catalogue.of_kind("caches") if name != "caches/dense"]
CHAIN = Spec("topologies/chain", length=3)
HEAT = 0.8


def run(part: Spec, heat: float, drafter: str = "", **changes) -> kit.Run:
    fields = {}
    if drafter == "drafters/oracle":
        fields = {"drafter": Spec(drafter), "topology": CHAIN}
    if drafter == "drafters/model":
        tree = kit.spec(kept_caches.TREE)
        fields = {"drafter": kit.spec(drafter), "topology": tree}
    method = Method(policy=part, **fields)
    made = kit.Run(method, heat, lm=peaked.model(), draft=peaked.model(4))
    return made.alter(**changes) if changes else made


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("heat", [0.0, HEAT])
def test_drafts_keep_the_text_of_plain_decoding(name, heat):
    policy = kit.spec(name)
    plain = kept_caches.texts(run(policy, heat))
    assert len(set(map(tuple, plain))) > 1
    for drafter in ("drafters/oracle", "drafters/model"):
        drafted = run(policy, heat, drafter)
        assert drafted.parts.program.policy.path_pure
        assert kept_caches.texts(drafted) == plain, drafter
    alone = kept_caches.texts(drafted, [peaked.PROMPTS[-1]])
    if heat == 0:  # a row's noise is its request's
        assert alone == plain[-1:]


def test_fault_room_is_ignored():
    """Planted: rounds go on where H2O evicts."""
    policy = kit.spec("caches/h2o")
    plain = kept_caches.texts(run(policy, 0.0))
    sound = run(policy, 0.0, "drafters/oracle").parts.program.policy
    longer = lambda state, cache, tokens: 0 * cache.length + tokens.shape[1] + 1
    wrong = run(policy, 0.0, "drafters/oracle", policy=sound._replace(room=longer))
    assert kept_caches.texts(wrong) != plain


@pytest.mark.parametrize("name", ["caches/h2o", "caches/streaming_llm", "caches/tova"])
def test_rooms_cost_few_tokens(name):
    """At most 5 % of an oracle's tokens a call at every=32; planted: every=1."""

    def per_call(**fields):
        part = Spec(name, **{**kit.spec(name).arguments, **fields})
        made = run(part, HEAT, "drafters/oracle")
        state = made.advance(made.start([[1, 2, 3]], new=96, size=peaked.SIZE))
        counters = state.counters
        calls = np.asarray(counters.target_calls).sum()
        return np.asarray(counters.new_tokens).sum() / calls

    whole = per_call(every=10_000)
    assert per_call(every=32) >= 0.95 * whole
    assert per_call(every=1) < 0.95 * whole


@pytest.mark.parametrize("name", NAMES)
def test_a_text_does_not_depend_on_its_admission(name):
    """Rows that are refilled, with drafts; planted: the texts of other requests."""
    method = Method(Spec("drafters/prompt_lookup"), policy=kit.spec(name))
    drafts = {"draft": peaked.model(4)}  # which guesses for caches/speckv
    parts = compose.compose(method, peaked.model(), HEAT, drafts)
    prompts = [*peaked.PROMPTS, *peaked.PROMPTS[:2]]
    limits = [len(prompt) + peaked.NEW for prompt in prompts]
    keys = engines.request_keys(0, len(prompts), 1)
    params = {"target": peaked.model().params, "draft": drafts["draft"].params}

    def texts(batch):
        arguments = (parts, params, prompts, limits, keys, batch)
        found = continuous_batching.decode_requests(*arguments)
        return {x.request: x.tokens for x in found}

    together, few = texts(len(prompts)), texts(2)
    assert together == few
    same = len(peaked.PROMPTS)  # prompts again, with a request's own noise
    assert [together[0], together[1]] != [together[same], together[same + 1]]


@pytest.mark.parametrize("name", [n for n in NAMES if n != "caches/minicache"])
@pytest.mark.parametrize("out", ["exits/skipdecode", "exits/first"])
def test_drafts_keep_the_text_under_an_exit_too(name, out):
    """A layer that a token skips holds no key of it, whatever the policy keeps.

    Planted: all nodes take the layers of the root.
    """
    both = {"exit": kit.spec(out), "policy": kit.spec(name)}
    tree = {"drafter": Spec("drafters/model"), "topology": kit.spec(kept_caches.TREE)}
    plain = exits.peaked_texts(exits.of_peaked(Method(**both)))
    drafted = exits.of_peaked(Method(**tree, **both))
    assert exits.peaked_texts(drafted) == plain
    if name == "caches/h2o" and out == "exits/skipdecode":
        wrong = exits.at_the_root(exits.of_peaked(Method(**tree, **both)))
        assert exits.peaked_texts(wrong) != plain
