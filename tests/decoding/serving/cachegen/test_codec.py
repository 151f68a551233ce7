"""CacheGen's quantiser and codes of whole rows."""

import numpy as np
import pytest

from decoding.serving.cachegen import codec, tables
from models.errors import MethodError

HEADS, DIM, LAYERS = 2, 4, 4


def row(seed: int, tokens: int) -> dict[str, np.ndarray]:
    """A row's arrays: channels of different scales, a token of zeros, and the rest."""
    rng = np.random.default_rng(seed)
    scale = np.exp(rng.normal(0, 1, (LAYERS, 2, HEADS, 1, DIM)))
    arrays = {"caches.target.length": np.int32(tokens), "drafter.k": np.ones(3)}
    for layer in range(LAYERS):
        for i, kind in enumerate("kv"):
            shape = (HEADS, tokens - layer, DIM)  # layers of different lengths
            x = scale[layer, i] * rng.normal(0, 1, shape)
            x[:, -1] = 0
            arrays[f"caches.target.layers.{layer}.{kind}"] = x.astype(np.float32)
    return arrays


def made(deltas: bool = False, levels=("2",)) -> dict[str, codec.Tables]:
    return tables.counted([row(1, 60), row(2, 40)], levels, deltas)


@pytest.mark.parametrize("bins", [4, 12, 16, 32, 128])
def test_error_is_half_a_step(bins):
    """|x - x^| <= max / (2 C); planted: symbols rounded down break the bound."""
    x = row(4, 50)["caches.target.layers.1.k"] * 1e3
    symbols = codec.quantised(x, bins)
    back = codec.restored(symbols, bins, HEADS)
    scale = symbols.ratios.astype(np.float32) * symbols.largest
    most = np.abs(x).max((0, 2))
    assert (scale >= most).all() and (scale <= most * 1.001 + 1e-12).all()
    bound = scale / (2 * codec.top(bins)) * (1 + 1e-5)
    assert (np.abs(x - back).max((0, 2)) <= bound).all()
    assert not back[:, -1].any()  # a token of zeros stays so, and is no NaN
    floored = np.floor(x / np.where(scale > 0, scale, 1)[:, None] * codec.top(bins))
    wrong = floored * (scale / codec.top(bins))[:, None]
    assert (np.abs(x - wrong).max((0, 2)) > bound).any()


def test_ranges_are_wide_and_narrow():
    """Maxima that differ by 10^6 within a layer, and beyond 16-bit floats."""
    x = np.ones((1, 3, 2), np.float32) * np.float32([1e30, 1e24, 1])[None, :, None]
    back = codec.restored(codec.quantised(x, 32), 32, 1)
    np.testing.assert_allclose(back[0, :2], x[0, :2], rtol=2e-2)
    assert np.isfinite(back).all()
    with pytest.raises(MethodError, match="bins=256"):
        codec.quantised(x, 256)  # planted: deltas would wrap


@pytest.mark.parametrize("deltas", [False, True])
@pytest.mark.parametrize("tokens", [5, 11, 40])
def test_rows_come_back(deltas, tokens):
    """The codes are exact on symbols; what is no target's key is left as it was."""
    arrays, table = row(7, tokens), made(deltas)["2"]
    coded, about = codec.compressed(arrays, table)
    back = codec.decompressed(coded, about, table)
    assert back.keys() == arrays.keys()
    assert back["drafter.k"] is arrays["drafter.k"]
    for name, x in arrays.items():
        if not codec.PLACE.match(name):
            continue
        layer, kind = int(name.split(".")[3]), name[-1]
        bins = codec.LEVELS["2"].bins(kind, layer, LAYERS)
        want = codec.restored(codec.quantised(x, bins), bins, HEADS)
        assert (back[name] == want).all() and back[name].dtype == x.dtype
    state = next(name for name in coded if name.endswith("states"))
    fault = {**coded, state: np.roll(coded[state], 1)}  # planted: lanes change places
    with pytest.raises(ValueError, match=r"words|left over"):
        codec.decompressed(fault, about, table)


def test_deltas_are_lossless_on_symbols():
    """Differences to an anchor of both signs; planted: another anchor."""
    symbols = np.random.default_rng(0).integers(0, 31, (6, 27)).astype(np.uint8)
    anchors, deltas = codec.split(symbols, 31)
    assert anchors.shape == (6, 3) and deltas.shape == (6, 24)
    assert (codec.joined(anchors, deltas, 31) == symbols).all()
    assert (codec.joined(anchors[:, ::-1], deltas, 31) != symbols).any()


def test_levels_follow_depth():
    """As in the official code for 32 layers; other depths have the same thirds."""
    of = lambda kind: [codec.LEVELS["2"].bins(kind, i, 32) for i in range(32)]
    assert of("k") == [32] * 10 + [16] * 22
    assert of("v") == [32] * 2 + [16] * 30
    first = codec.LEVELS["1"]
    assert [first.bins("k", i, 8) for i in range(8)] == [16] * 5 + [12] * 3


def test_fewer_bins_take_fewer_bits():
    """Planted: the levels' order reversed."""
    made_all = made(levels=("3", "2", "1"))
    sizes = []
    for level in ("3", "2", "1"):
        coded, _ = codec.compressed(row(7, 60), made_all[level])
        sizes.append(codec.bits(coded))
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > sizes[2]


def test_tables_are_of_one_model(tmp_path):
    """Planted: other weights, a flipped byte, no file, another level."""
    table = made(deltas=True)
    file = tables.path(tmp_path)
    tables.save(file, table, "these")
    back = tables.load(file, "2", "these")
    assert tables.digest(back) == tables.digest(table["2"]) and back.deltas
    assert tables.digest(made()["2"]) != tables.digest(table["2"])
    with pytest.raises(MethodError, match="other weights"):
        tables.load(file, "2", "those")
    with pytest.raises(MethodError, match="levels"):
        tables.load(file, "1", "these")
    with pytest.raises(MethodError, match=r"missing.*calibrate"):
        tables.load(tmp_path / "none", "2", "these")
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    with pytest.raises(MethodError, match="checksum"):
        tables.load(file, "2", "these")
    with pytest.raises(MethodError, match="no text"):
        tables.counted([], ("2",))
    with pytest.raises(MethodError, match="no exact keys"):
        codec.compressed({"drafter.k": np.ones(3)}, table["2"])
