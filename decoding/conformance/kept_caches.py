"""The contract of policies that keep a part of the cache, on the peaked transformer."""

import inspect

import numpy as np

import decoding
from decoding import base
from decoding.catalogue import Spec
from decoding.conformance import kit, peaked
from decoding.conformance.require import require
from decoding.method import Method
from models.cache_layouts.kept import KeptLayer
from models.cache_layouts.own_pages import HeadPages

WHOLE = 16 * peaked.SIZE  # a budget that holds every token, however layers divide it
TREE = "topologies/static"
CLOSE = 2e-5  # of log-probabilities in float32


def runs(spec: Spec) -> tuple[kit.Run, kit.Run]:
    """Return runs of plain decoding and of a draft tree under the policy."""
    part = kit.spec(spec.name, **spec.arguments)
    models: dict = {"lm": peaked.model(), "draft": peaked.model(4)}
    tree = Method(kit.spec("drafters/model"), topology=kit.spec(TREE), policy=part)
    return kit.Run(Method(policy=part), **models), kit.Run(tree, **models)


def check(spec: Spec) -> None:
    """Check a policy that keeps a part of the cache against every contract here.

    Raises:
        AssertionError: it breaks a property; the message names it.
    """
    plain, drafted = runs(spec)
    named = inspect.signature(spec.factory).parameters
    # A layout of codes keeps every slot. Its window bounds a chunk's nodes.
    size = next((name for name in ("budget", "window") if name in named), None)
    if size == "budget":
        the_budget_is_kept(spec, plain)
    chunks_leave_one_text(spec, plain, (4, 16 if size == "window" else 128))
    drafts_keep_the_text(spec, drafted, plain)
    rows_are_apart(spec, plain)
    if size is not None:
        a_large_budget_is_dense(spec, size)


def start(run: kit.Run, prompts=peaked.PROMPTS):
    return run.start(prompts, new=peaked.NEW, size=peaked.SIZE)


def texts(run: kit.Run, prompts=peaked.PROMPTS) -> list:
    return run.texts(prompts, new=peaked.NEW, size=peaked.SIZE)


def layers(state) -> list:
    kept = state.caches["target"].layers
    return [layer for layer in kept if isinstance(layer, (KeptLayer, HeadPages))]


def used(state) -> np.ndarray:
    """Return int32[L, B, G]: the slots in use of each kept layer's heads."""
    length = state.caches["target"].length
    shape = (len(length), peaked.GROUPS)
    return np.stack(
        [np.broadcast_to(np.asarray(x.used(length)), shape) for x in layers(state)]
    )


def the_budget_is_kept(spec: Spec, run: kit.Run) -> None:
    """Require the budget after the prompt, room for each round, and tokens in order.

    The heads of a layer may divide its budget.

    The newest token is always kept; no token is kept twice.
    """
    state = start(run)
    length = np.asarray(state.caches["target"].length)
    due = np.stack([np.minimum(length, np.asarray(x.budget)) for x in layers(state)])
    told = f"{used(state).tolist()} slots after the prompt, not {due.tolist()} a head"
    require((used(state).sum(2) == peaked.GROUPS * due).all(), spec, told)
    for _ in range(peaked.NEW):
        cache = state.caches["target"]
        length = np.asarray(cache.length)
        for layer, slots in zip(layers(state), used(state)):
            block = run.parts.program.drafter.nodes
            full = slots.max() + block > layer.capacity
            require(not full, spec, f"{slots.max()} slots leave no room for {block}")
            tokens = np.asarray(layer.tokens(cache.length))
            for row, head in np.ndindex(*slots.shape):
                n = slots[row, head]
                kept, rest = tokens[row, head, :n], tokens[row, head, n:]
                ordered = (np.diff(kept) > 0).all() and (rest == -1).all()
                require(ordered, spec, f"tokens out of order: {kept.tolist()}")
                newest = (kept[-1:] == length[row] - 1).all()
                require(newest, spec, "the newest token is not kept")
        state = run.advance(state, 1)


def chunks_leave_one_text(spec: Spec, run: kit.Run, chunks=(4, 128)) -> None:
    """Require one text and one set of kept tokens, whatever the prompt's chunks."""
    found = []
    for chunk in chunks:
        state = start(run.alter(chunk=chunk))
        length = state.caches["target"].length
        kept = [np.asarray(x.tokens(length)).tolist() for x in layers(state)]
        found.append((kept, kit.texts(run.advance(state), peaked.PROMPTS)))
    require(found[0] == found[1], spec, "the text depends on the prompt's chunks")


def drafts_keep_the_text(spec: Spec, drafted: kit.Run, plain: kit.Run) -> None:
    """Require plain decoding's text from drafts, if the policy is `path_pure`."""
    if drafted.parts.program.policy.path_pure:
        same = texts(drafted) == texts(plain)
        require(same, spec, "a draft tree changes the text, and it is path_pure")


def rows_are_apart(spec: Spec, run: kit.Run) -> None:
    """Require a row's text beside other prompts, of the same lengths."""
    others = [[(t + 1) % kit.EOS for t in p] for p in peaked.PROMPTS[:-1]]
    beside = texts(run, [*others, peaked.PROMPTS[-1]])
    require(beside[-1] == texts(run)[-1], spec, "a text depends on other rows")


def a_large_budget_is_dense(spec: Spec, name: str = "budget") -> None:
    """Require the dense cache's texts, and its log-probabilities up to rounding."""
    part = kit.spec(spec.name, **{**spec.arguments, name: WHOLE})

    def out(policy: Spec):
        method = Method(policy=policy)
        drafts = kit.models(method, peaked.model(4))
        new: dict = {"max_new_tokens": peaked.NEW, "drafts": drafts}
        return decoding.generate(peaked.model(), peaked.PROMPTS, method, **new)

    whole, dense = out(part), out(Spec("caches/dense"))
    require(whole.tokens == dense.tokens, spec, "a budget of all tokens is not dense")
    gap = max(
        np.abs(np.subtract(*pair)).max() for pair in zip(whole.logprobs, dense.logprobs)
    )
    require(gap <= CLOSE, spec, f"log-probabilities {gap:.1e} from the dense cache's")
    named = base.under(dense.guarantee, spec.name.rpartition("/")[2])
    told = f"its guarantee is {whole.guarantee}, not {named}"
    pure = part.build(peaked.parts()).path_pure
    require(whole.guarantee == named or not pure, spec, told)
