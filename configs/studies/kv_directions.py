"""Directions of cache policies at few slots, those that `kv_cache` does not run.

python -m experiments.run --config=configs/studies/kv_directions.py --workdir=runs/kvd

The stage of configs/studies/kv_cache.py, which says what is measured. Here: reads of
chosen slots beside evictions (TidalDecode, Quest: their `kept` is slots read, nothing
is freed), SpecKV with a draft model's guess beside SnapKV, Keyformer beside H2O,
Chelsea beside evictions, and budgets that give layers 0 and 1 twice their part, which
is all of the prompt where half is kept: `tiny` reads them nearly uniformly.

Hardware: two CPU cores, half an hour.
Expected (design figures for `tiny` at 32 of 512 slots): nats above dense: TidalDecode
0.10, SnapKV 0.38, StreamingLLM 0.65, H2O 0.69.
"""

import ml_collections

from configs.studies import kv_cache

TWICE = (2.0, 2.0, *(6 * (2 / 3,)))  # of layers 0 and 1
BASIC = ("StreamingLLM", "H2O", "SnapKV")


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `kv_cache`."""
    c = kv_cache.get_config()
    c.tasks = ("needle", "long_nats")
    c.views = ("seen",)
    c.kept = (1 / 16, 1 / 8, 1 / 2)
    c.tree = ""

    found = {name: c.policies[name].to_dict() for name in BASIC}
    found["SpecKV"] = {"name": "caches/speckv", "window": 16}
    found["Keyformer"] = {"name": "caches/keyformer"}
    found["Chelsea"] = {"name": "caches/chelsea"}
    found["TidalDecode"] = {"name": "caches/tidal"}
    near = {"name": "caches/tidal", "select": (2, 3)}
    found["TidalDecode, layers 2, 3"] = near
    found["Quest"] = {"name": "caches/quest"}
    for name in BASIC:
        found[f"{name}, layers 0, 1 twice"] = found[name] | {"layers": TWICE}
    c.policies = ml_collections.ConfigDict(found)

    claims: list[tuple[str, str, str]] = []
    for task in ("needle seen", "long_nats seen"):
        claims += [(task, "TidalDecode", name) for name in BASIC]
        claims += [(task, "TidalDecode", "TidalDecode, layers 2, 3")]
        claims += [(task, "Quest", "SnapKV"), (task, "SpecKV", "SnapKV")]
        claims += [(task, "Keyformer", "H2O")]
        claims += [(task, "Chelsea", name) for name in BASIC]
        claims += [(task, f"{name}, layers 0, 1 twice", name) for name in BASIC]
    c.claims = tuple(claims)
    return c
