"""Composition of logits transforms."""

from jax import Array

from decoding import base, vocab
from models.errors import MethodError

DOMAINS = ("logits", "logprobs")


def chain(*transforms: base.LogitsTransform) -> base.LogitsTransform:
    """Apply `transforms` from left to right; none at all is the identity.

    A transform of the domain "logprobs" always receives normalised values; the chain
    itself takes logits. Each `advance` receives the logits that its own `apply`
    received, and the `aux` of that node.

    The state is a tuple of the parts' states. The chain is a warper, nameless
    or stateless if all parts are. Its streams are the union of the parts'.

    Raises:
        MethodError: a part has an unknown domain.
    """
    for part in transforms:
        if part.domain not in DOMAINS:
            raise MethodError(f"domain={part.domain!r}: use one of {DOMAINS}")

    def init(tokens: Array, length: Array) -> base.State:
        states = [part.init(tokens, length) for part in transforms]
        return base.State(
            tuple(state.row for state in states),
            tuple(state.shared for state in states),
        )

    def split(state: base.State) -> list[base.State]:
        return [base.State(*pair) for pair in zip(state.row, state.shared)]

    def stages(state: base.State, logits: Array, aux: dict) -> list[Array]:
        """Return the input of each part's `apply`, then the last part's output."""
        received, domain = [], "logits"
        for part, part_state in zip(transforms, split(state)):
            if part.domain == "logprobs" and domain != "logprobs":
                logits = vocab.log_softmax(logits)
            received.append(logits)
            logits, domain = part.apply(part_state, logits, aux), part.domain
        return received + [logits]

    def apply(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        return stages(state, logits, aux)[-1]

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

    return base.LogitsTransform(
        init,
        apply,
        advance if any(part.advance is not None for part in transforms) else None,
        warper=bool(transforms) and all(part.warper for part in transforms),
        nameless=all(part.nameless for part in transforms),
        streams=tuple(dict.fromkeys(s for part in transforms for s in part.streams)),
    )
