"""Composition of logits transforms, and the mass that their constraints leave."""

import functools
from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jax import Array

from decoding import base, vocab
from decoding.denoising.holes import Holes
from models.errors import MethodError

DOMAINS = ("logits", "logprobs")


def chain(*transforms: base.LogitsTransform) -> base.LogitsTransform:
    """Apply `transforms` from left to right; none at all is the identity.

    A transform of the domain "logprobs" always receives normalised values; the chain
    itself takes logits. Each `advance` receives the logits that its own `apply`
    received, and the `aux` of that node.

    The state is a tuple of the parts' states. The chain is a warper, nameless
    or stateless if all parts are, and a constraint if one part is. Its streams are the
    union of the parts'. The first part that suggests forced tokens does so for it. Its
    holes are those of the one part that has some, if no other part follows a text.

    Raises:
        MethodError: a part has an unknown domain; two parts read one mask of the host;
            where the chain's `free` runs, a part behind a constraint normalises or
            mixes laws, so that `mass` sees nothing.
    """
    for part in transforms:
        if part.domain not in DOMAINS:
            raise MethodError(f"domain={part.domain!r}: use one of {DOMAINS}")

    def begun(inits: Sequence[Callable], tokens: Array, length: Array) -> base.State:
        states = [begin(tokens, length) for begin in inits]
        return base.State(
            tuple(state.row for state in states),
            tuple(state.shared for state in states),
        )

    init = functools.partial(begun, [part.init for part in transforms])

    def split(state: base.State) -> list[base.State]:
        return [base.State(*pair) for pair in zip(state.row, state.shared)]

    def stages(
        state: base.State, logits: Array, aux: dict, is_free: bool = False
    ) -> list[Array]:
        """Return the input of each part's `apply`, then the last part's output.

        `is_free`: constraints forbid nothing.
        """
        received, domain = [], "logits"
        for part, part_state in zip(transforms, split(state)):
            if part.domain == "logprobs" and domain != "logprobs":
                logits = vocab.log_softmax(logits)
            received.append(logits)
            act = part.free if is_free and part.free else part.apply
            logits, domain = act(part_state, logits, aux), part.domain
        return received + [logits]

    def apply(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        return stages(state, logits, aux)[-1]

    first = next((i for i, part in enumerate(transforms) if part.free), None)

    def free(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        assert first is not None
        for part in transforms[first + 1 :]:
            if part.domain == "logprobs" or (part.streams and not part.free):
                raise MethodError(
                    "a transform that reads log-probabilities or streams stands behind "
                    "a constraint, whose mass it hides: put the constraint behind it"
                )
        return stages(state, logits, aux, is_free=True)[-1]

    def advance(
        state: base.State, token: Array, logits: Array, aux: dict[str, Array]
    ) -> base.State:
        # Where a part's advance ignores its logits, XLA drops their recomputation.
        moved = [
            part_state
            if part.advance is None
            else part.advance(part_state, token, received, aux)
            for part, part_state, received in zip(
                transforms, split(state), stages(state, logits, aux)
            )
        ]
        return base.State(tuple(part_state.row for part_state in moved), state.shared)

    numbers = tuple(
        (name, functools.partial(lambda i, of, state: of(split(state)[i]), i, of))
        for i, part in enumerate(transforms)
        for name, of in part.numbers
    )
    suggest = next((i for i, part in enumerate(transforms) if part.forced), None)

    def forced(state: base.State) -> tuple[Array, Array]:
        assert suggest is not None
        of = transforms[suggest].forced
        assert of is not None
        return of(split(state)[suggest])

    def holes_of(i: int) -> Holes:
        own = transforms[i].holes
        assert own is not None
        over = lambda of: of and (lambda state, *rest: of(split(state)[i], *rest))
        inits = [part.init for part in transforms]
        inits[i] = own.init
        begin = functools.partial(begun, inits)
        return Holes(begin, *(over(function) for function in own[1:]))

    fills = [i for i, part in enumerate(transforms) if part.holes or part.advance]
    fills = [i for i in fills if len(fills) == 1 and transforms[i].holes]
    names = [name for name, _ in numbers]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise MethodError(
            f"two constraints have the masks {twice}: give one of them another `stream`"
        )
    return base.LogitsTransform(
        init,
        apply,
        advance if any(part.advance is not None for part in transforms) else None,
        warper=bool(transforms) and all(part.warper for part in transforms),
        nameless=all(part.nameless for part in transforms),
        streams=tuple(dict.fromkeys(s for part in transforms for s in part.streams)),
        free=None if first is None else free,
        numbers=numbers,
        forced=None if suggest is None else forced,
        holes=holes_of(fills[0]) if fills else None,
    )


def mass(
    transform: base.LogitsTransform,
    state: base.State,
    logits: Array,
    aux: dict[str, Array],
) -> Array:
    """★ Return the log of the share that a transform's constraints leave, float32[].

    With z' the logits after the transform, z those after it without its constraints:

        mass = log sum_v exp z'_v - log sum_v exp z_v

    So the law after the transform, times the mass, is exp z'_v / sum exp z: where parts
    behind a constraint act on each logit alone (a temperature, a bias), the law without
    the constraint, at the allowed tokens. A truncation there (top-k, top-p) sees the
    masked law. Of tokens that both laws keep, this is still the law without the
    constraint; one that a truncation keeps under the mask alone has what its logit
    is worth beside them. 0 without a constraint.

    Raises:
        MethodError: see `chain`.
    """
    if transform.free is None:
        return jnp.zeros(())
    free = vocab.logsumexp(transform.free(state, logits, aux))
    return vocab.logsumexp(transform.apply(state, logits, aux)) - free
