"""Stored prefixes: loaded texts are computed ones, and a wrong file is a miss."""

import dataclasses
import functools
import os
import types

import jax
import numpy as np
import pytest

import decoding
import models
from decoding import Method, Spec
from decoding.conformance import kit
from decoding.serving import prefix_files, prefix_folder, prefix_loading, prefix_rows
from decoding.serving.cachegen import tables
from decoding.serving.prefix_store import PrefixStore
from models import transformer
from models.errors import MethodError, PromptError
from tests.models import blocks

# Two layers, so that programs are small; links and chunks of 16 tokens for all calls.
CONFIG = transformer.Config(
    vocab_size=50,
    d_model=32,
    n_layers=2,
    n_heads=4,
    n_kv_heads=2,
    head_dim=8,
    d_ff=40,
    max_positions=256,
    ropes=(transformer.rope(8, 100.0),),
)
NEW, LINK = 12, 16
BASE = np.random.default_rng(0).integers(1, 50, 80).tolist()
PROMPTS = [[*BASE[:52], 3, 1, 4], [*BASE[:36], *range(1, 20)]]
H2O = Spec("caches/h2o", budget=24, every=8, prompt_every=16)


@functools.cache
def lm(seed: int = 0) -> models.Loaded:
    model = transformer.transformer(CONFIG)
    params = blocks.numpy_params(model)
    return models.Loaded(model, jax.tree.map(lambda x: x * (1 + seed / 64), params))


def store(folder, method=None, **settings) -> PrefixStore:
    settings = {"link": LINK, "new": NEW, "prefill_chunk": LINK, **settings}
    return PrefixStore(folder, lm(), method, **settings)


def texts(method=None, prompts=PROMPTS, **settings):
    rest = {"prefill_chunk": LINK, "width": "paper", **settings}
    return decoding.generate(lm(), prompts, method, NEW, **rest)


def check_identical(folder, method, drafts=None):
    """Both rows load what is stored of them; texts and log-probabilities are equal."""
    sizes = {"rows": 2, "prompt_tokens": len(PROMPTS[0])}
    kept = store(folder, method, drafts=drafts, **sizes)
    assert kept.add(PROMPTS[0]).tokens == 48
    assert kept.add(PROMPTS[1][:38]).tokens == 32
    plain = texts(method, drafts=drafts)
    loaded = texts(method, drafts=drafts, prefixes=kept)
    # The second prompt shares 36 tokens with the first, whose entry is longer.
    assert [one.tokens for one in loaded.prefixes] == [48, 32]
    assert loaded.stats.loaded == 80 and plain.stats.loaded == 0
    assert (loaded.tokens, loaded.logprobs) == (plain.tokens, plain.logprobs)
    calls = [list(out.stats.target_calls) for out in (plain, loaded)]
    assert calls[0] == calls[1] and loaded.guarantee == plain.guarantee
    return kept, plain


def altered(kept: PrefixStore, name: str, change) -> None:
    """Change an array of every entry, and write a right checksum."""
    for entry in kept.entries():
        about, arrays = prefix_files.read(entry.file)
        arrays = {n: change(x) if n.endswith(name) else x for n, x in arrays.items()}
        prefix_files.write(entry.file, prefix_files.Content(about, arrays))


def test_texts_are_those_without_the_store(tmp_path):
    """Of a draft model with a cache; planted: a key of the target's cache is lost."""
    method = Method(Spec("drafters/model"), topology=Spec("topologies/chain", length=2))
    drafts = {"draft": lm(1)}
    kept, plain = check_identical(tmp_path, method, drafts)
    altered(kept, "target.layers.0.v", lambda x: np.zeros_like(x))
    assert texts(method, drafts=drafts, prefixes=kept).logprobs != plain.logprobs


def test_what_a_policy_kept_is_loaded(tmp_path):
    """Of H2O, which has evicted in the prefix; planted: its scores are lost."""
    method = Method(policy=H2O)
    kept, plain = check_identical(tmp_path, method)
    altered(kept, "notes.score", lambda x: np.zeros_like(x))
    assert texts(method, prefixes=kept).logprobs != plain.logprobs


@pytest.mark.long
@pytest.mark.parametrize(
    "policy",
    [
        Spec("caches/snapkv", budget=24, window=8, kernel=3),
        Spec("caches/snapkv", budget=0.5, window=8, kernel=3),  # evicts afterwards
        Spec("caches/streaming_llm", budget=24, sinks=2, every=8, prompt_every=16),
    ],
)
def test_further_policies(tmp_path, policy):
    """A prefix is stored before a policy that evicts once does so."""
    check_identical(tmp_path, Method(policy=policy))


@pytest.mark.long
def test_a_budget_by_the_prompts_length(tmp_path):
    """The prefix's evictions are those of another prompt: a miss, with the reason."""
    method = Method(policy=Spec("caches/h2o", budget=0.5, every=8, prompt_every=16))
    kept = store(tmp_path, method, rows=2)
    kept.add(PROMPTS[0])
    out = texts(method, prefixes=kept)
    assert out.stats.loaded == 0 and out.tokens == texts(method).tokens
    assert "policy began from another value" in out.prefixes[0].reason


@pytest.mark.long
def test_streams_load_too(tmp_path):
    kept = store(tmp_path, rows=2)
    kept.add(PROMPTS[0])
    settings = {"prefill_chunk": LINK, "width": "paper", "prefixes": kept}
    new: list[list[int]] = [[], []]
    for piece in decoding.stream(lm(), PROMPTS, None, NEW, **settings):
        new[piece.prompt] += piece.tokens
    assert new == texts().tokens


# From here on rows are made by hand: nothing is compiled.


def by_hand(kept: PrefixStore, tokens, following: int = -1) -> prefix_rows.Row:
    signature = kept.signature(kept.lm, kept._parts, kept._params)
    arrays = {"caches.target.layers.0.k": np.ones((2, len(tokens), 8), np.float32)}
    signature["chunk"] = LINK
    return prefix_rows.Row(tuple(tokens), following, signature, arrays, {}, False)


def saved(kept: PrefixStore, size: int, following: int = -1) -> prefix_folder.Entry:
    return kept.save(BASE[:size], by_hand(kept, BASE[:size], following))


def test_the_longest_prefix_is_found(tmp_path):
    """By the chain of hashes; planted: a chain that forgets the links before."""
    kept = store(tmp_path)
    for size in (16, 48, 32):
        saved(kept, size)
    found = lambda tokens: kept.find(tokens).tokens
    assert found(BASE) == found(BASE[:49]) == 48
    assert found(BASE[:48]) == 32  # the last token is never in the cache
    assert found([*BASE[:40], 0, *BASE[41:]]) == 32
    assert found([0, *BASE[1:]]) == found(BASE[:16]) == 0
    chain = prefix_folder.chain(BASE, LINK)
    other = prefix_folder.chain([0, *BASE[1:]], LINK)
    assert not set(chain) & set(other)
    alone = [prefix_folder.chain(BASE[i : i + LINK], LINK)[0] for i in range(0, 80, 16)]
    turned = [0, *BASE[1:]]
    again = [prefix_folder.chain(turned[i : i + LINK], LINK)[0] for i in (0, 16)]
    assert alone[1] == again[1]  # the planted chain finds another prompt's link


def test_the_next_token_counts_where_a_row_depends_on_it(tmp_path):
    kept = store(tmp_path)
    saved(kept, 32, BASE[32])
    assert kept.find(BASE).tokens == 32
    missed = kept.find([*BASE[:32], 0, 0])
    assert missed.row is None and f"followed by token {BASE[32]}" in missed.reason


def flip(file) -> None:
    data = bytearray(file.read_bytes())
    data[-200] ^= 1  # of a key; the tokens are last
    file.write_bytes(data)


DAMAGE = {
    "a flipped byte": (flip, "checksum"),
    "a torn file": (lambda f: f.write_bytes(f.read_bytes()[:-9]), "checksum"),
    "a torn header": (lambda f: f.write_bytes(f.read_bytes()[:99]), "torn"),
    "another file": (lambda f: f.write_bytes(b"GIF89a" * 90), "torn"),
    "a folder": (lambda f: (f.unlink(), f.mkdir()), "directory"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_a_miss_with_the_reason(tmp_path, what):
    """And the next shorter entry serves."""
    damage, reason = DAMAGE[what]
    kept = store(tmp_path)
    saved(kept, 16)
    damage(saved(kept, 32).file)
    found = kept.find(BASE)
    assert found.tokens == 16 and reason in found.reason
    reasons = [entry.reason for entry in kept.verify()]
    assert sorted(map(bool, reasons)) == [False, True]


def test_fault_the_checksum_skipped(tmp_path, monkeypatch):
    """Planted: a flipped byte of a key is then loaded."""
    kept = store(tmp_path)
    flip(saved(kept, 32).file)
    assert kept.find(BASE).row is None
    trusting = functools.partial(prefix_files.read, check=False)
    monkeypatch.setattr(prefix_files, "read", trusting)
    assert kept.find(BASE).tokens == 32


def test_other_models_and_methods_miss_with_the_reason(tmp_path):
    """Weights, tokenizer, config, policy, chunks; planted: a key without the policy."""
    kept = store(tmp_path, Method(policy=H2O))
    saved(kept, 32)
    changes = {
        "weights": {"lm": lm(1)},
        "tokenizer": {"lm": dataclasses.replace(lm(), tokenizer=kit.Letters())},
        "method": {
            "method": Method(
                policy=Spec(
                    "caches/h2o", budget=24, every=8, prompt_every=16, recent=0.25
                )
            )
        },
    }
    for name, change in changes.items():
        arguments = {"lm": lm(), "method": Method(policy=H2O), **change}
        model, method = arguments["lm"], arguments["method"]
        other = PrefixStore(tmp_path, model, method, link=LINK)
        missed = other.find(BASE)
        assert missed.row is None and f"has another {name}" in missed.reason
    signature = kept.signature(kept.lm, kept._parts, kept._params)
    missed = kept.find(BASE, {**signature, "chunk": 32})
    assert missed.row is None and "chunk (16, here 32)" in missed.reason
    del signature["method"]
    without = lambda wanted, stored: [
        name for name in wanted if name != "method" and wanted[name] != stored[name]
    ]
    other = store(tmp_path, changes["method"]["method"])
    with pytest.MonkeyPatch.context() as patch:  # planted
        patch.setattr(prefix_rows, "differing", without)
        assert other.find(BASE).tokens == 32


def test_a_writer_that_was_killed(tmp_path):
    """Its temporary file is no entry; it is listed, and goes with age."""
    kept = store(tmp_path)
    entry = saved(kept, 32)
    part = entry.file.with_name(f".{entry.file.name}.123.part")
    entry.file.rename(part)
    assert kept.find(BASE) == (None, "", "", None)
    (torn,) = kept.verify()
    assert torn.file == part and "did not finish" in torn.reason
    assert kept.evict(most_seconds=3600) == [] and part.exists()
    os.utime(part, (0, 0))
    kept.evict(most_seconds=3600)
    assert not part.exists()


def test_the_newest_stay(tmp_path):
    """By bytes and by age; loading makes an entry new; planted: the oldest stay."""
    kept = store(tmp_path)
    entries = [saved(kept, size) for size in (16, 32, 48)]
    for i, entry in enumerate(entries):
        os.utime(entry.file, (1e9 + i, 1e9 + i))
    assert kept.find(BASE[:17]).tokens == 16  # the oldest is used
    order = [entry.tokens for entry in kept.entries()]
    assert order == [16, 48, 32] != [48, 32, 16]
    gone = kept.evict(most_bytes=entries[0].bytes + entries[2].bytes)
    assert [entry.tokens for entry in gone] == [32]
    assert [entry.tokens for entry in kept.evict(most_seconds=1e6)] == [48]
    assert [entry.tokens for entry in kept.entries()] == [16]


def test_compressed_entries_are_lossy(tmp_path):
    """They need tables; those of another calibration are a miss."""
    with pytest.raises(MethodError, match=r"missing.*calibrate"):
        store(tmp_path, level="2")
    raw = store(tmp_path)
    wide = lambda kept: by_hand(kept, BASE[:32])
    arrays = dict(wide(raw).arrays)
    arrays["caches.target.layers.0.v"] = arrays["caches.target.layers.0.k"]
    for scale in (1, 3):
        counted = tables.counted([arrays] * scale, ("2",))
        if scale == 3:
            counted["2"].frequencies[:] = np.roll(counted["2"].frequencies, 1, 2)
            counted["2"].frequencies[..., -1] = 0
            counted["2"].frequencies[..., 0] = 2**16 - counted["2"].frequencies[
                ..., 1:
            ].sum(-1)
        tables.save(tables.path(tmp_path), counted, raw.weights)
        if scale == 1:
            kept = store(tmp_path, level="2")
            kept.save(BASE[:32], wide(kept)._replace(arrays=arrays))
            found = kept.find(BASE)
            assert found.level == "2"
            np.testing.assert_allclose(
                found.row.arrays["caches.target.layers.0.k"], 1, rtol=1e-3
            )
    assert "other tables" in store(tmp_path).find(BASE).reason
    loading = prefix_loading.Loading(*(None,) * 6)
    loading.loaded = [prefix_loading.Loaded(32, "2", "", 0.0)]
    assert loading.guarantee("LAW") == "LOSSY"
    loading.loaded = [prefix_loading.Loaded(32, "raw", "", 0.0)]
    assert loading.guarantee("LAW") == "LAW"


def test_what_cannot_be_stored_is_said(tmp_path):
    with pytest.raises(PromptError, match="no prefix to store"):
        store(tmp_path).add(BASE[:16])
    with pytest.raises(MethodError, match="level='4'"):
        store(tmp_path, level="4")
    with pytest.raises(MethodError, match="link=0"):
        store(tmp_path, link=0)
    with pytest.raises(PromptError, match="under its own tokens"):
        kept = store(tmp_path)
        kept.save(BASE[1:33], by_hand(kept, BASE[:32]))
    shared = {"the drafter": "a"}
    state = types.SimpleNamespace(
        drafter=types.SimpleNamespace(shared=np.ones(2)),
        exit=types.SimpleNamespace(shared=()),
    )
    with pytest.raises(prefix_rows.Misfit, match="memory of all rows"):
        prefix_rows.taken(None, state, {}, {**shared, "the exit": ""}, {})
