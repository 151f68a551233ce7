"""decoding/text_lookup/repeat_lengths.py against a search in the text."""

import jax
import jax.numpy as jnp
import numpy as np

from decoding.text_lookup import repeat_lengths

VOCAB, SIZE = 4, 40
BEGIN, STEP = jax.jit(repeat_lengths.begin), jax.jit(repeat_lengths.advance)


def searched(text: list[int], breakers=(), window: int | None = None) -> list[int]:
    """The longest repetition that each token would make, by comparing all places."""
    text, made = text[-window:] if window else text, [0] * VOCAB
    for at, token in enumerate(text):
        length = 0
        while length < at:
            before, end = text[at - 1 - length], text[-1 - length]
            if before != end or end in breakers:
                break
            length += 1
        made[token] = max(made[token], length + 1)
    return made


def table(text: list[int], prompt: int, breakers=None) -> repeat_lengths.Repeats:
    """The table of a text whose first tokens are the prompt."""
    buffer = np.asarray([*text, *[1] * (SIZE - len(text))], np.int32)
    state = BEGIN(buffer, np.int32(prompt), breakers)
    for token in text[prompt:]:
        state = STEP(state, np.int32(token), breakers)
    return state


def texts():
    rng = np.random.default_rng(0)
    for length in (1, 2, 7, 20, 39):
        for _ in range(4):
            yield rng.integers(0, VOCAB - 1, length).tolist()
    yield [0, 1, 2] * 10


def wrong(breakers=(), window=None, told=True) -> int:
    """Texts whose table differs from the search, at three prompts' lengths."""
    count = 0
    mask = jnp.zeros(VOCAB, bool).at[jnp.asarray(breakers, int)].set(True)
    for text in texts():
        for prompt in {0, len(text) // 2, len(text)}:
            state = table(text, prompt, mask if told else None)
            made = repeat_lengths.repeated(state, VOCAB, window)
            count += made.tolist() != searched(text, breakers, window)
    return count


def test_by_hand():
    state = table([0, 1, 2, 0, 1], 3)
    assert state.lengths[:5].tolist() == [0, 2, 0, 0, 0]
    assert repeat_lengths.repeated(state, VOCAB).tolist() == [1, 1, 3, 0]


def test_equals_a_search():
    assert wrong() == 0
    assert wrong(window=5) == 0
    assert wrong(breakers=(1,)) == 0


def test_fault_breakers_and_windows_left_out():
    """Planted: matches run through a breaker; the window is that of another."""
    assert wrong(breakers=(1,), told=False) > 5
    state = table([0, 1, 2, 0, 1], 3)
    assert repeat_lengths.repeated(state, VOCAB, 2).tolist() != searched(
        [0, 1, 2, 0, 1]
    )


def test_a_text_past_its_buffer_keeps_what_the_buffer_holds():
    text = [0, 1, 2] * 20
    state = table(text[:SIZE], 3)
    state = repeat_lengths.advance(state, jnp.int32(text[SIZE]))
    assert int(repeat_lengths.repeated(state, VOCAB).max()) == SIZE - 1
