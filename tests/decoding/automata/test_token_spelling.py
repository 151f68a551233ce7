"""Bytes by the tokenizer's own tokens, or by the longest."""

from decoding.automata.token_spelling import Speller, of

TOKENS = [b"a", b"ab", b"b", b"bc", b"\xc3", b""]


class Letters:
    def encode(self, text, add_special=True):
        ids = [{"a": 0, "b": 2}.get(letter, 5) for letter in text]
        return [5, *ids] if add_special else ids


def test_the_tokenizer_s_own_spelling():
    """Planted: the longest tokens, of which one takes two letters."""
    assert Speller(TOKENS, of(Letters()))(b"ab") == ([0, 2], b"")
    assert Speller(TOKENS)(b"ab") == ([1], b"")


def test_the_longest_where_it_has_other_bytes():
    """A special token, or one that no vocabulary has, spells nothing."""
    assert Speller(TOKENS, of(Letters()))(b"abbc") == ([1, 3], b"")
    assert Speller(TOKENS, lambda text: [0, 99])(b"a") == ([0], b"")
    assert Speller(TOKENS, Letters().encode)(b"ab") == ([1], b"")


def test_what_no_token_begins_is_left():
    assert Speller(TOKENS)(b"abxa") == ([1], b"xa")
    assert Speller(TOKENS, of(Letters()))(b"\xc3") == ([4], b"")
    assert of(object()) is None
