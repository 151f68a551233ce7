"""The kit's cases as parameters of tests."""

import pytest

from decoding import Method

# Further topologies of drafters that meet another one in every run.
RARE = (
    "copyspec_model-eagle2",
    "easyspec-eagle2",
    "model-confidence_stop",
    "model-dyspec",
    "model-hardware_aware",
    "model-rsd_s",
    "online_sd-chain",
    "rapid-eagle2",
    "rasd-eagle2",
    "s2d-chain",
    "sam_decoding-model",
    "suffix_model-eagle2",
    "masked_diffusion-eagle2",
    "pard-eagle2",
    "oracle-static",
    "oracle-eagle2",
    "model-static",
    *("dflash-static", "dflash-jetspec", "dflash2-static", "dflash2-jetspec"),
    *("dspark-static", "treeflash-static", "treeflash-jetspec"),
)

# A method's greedy programs serve one contract alone, its sampled ones all others,
# greedy rows among them. These draft as another does that meets it in every run; they
# meet it with the long tests.
ALIKE = (
    *("chimera-static", "clover-static", "falcon-static", "hidden_transfer-static"),
    *("hydra-static", "lud", "ppd-static", "eagle-eagle2", "fspad-eagle2"),
    *("aded", "copyspec", "prompt_lookup", "rest", "suffix_decoding"),
    *("copyspec_model-chain", "easyspec-chain", "rapid-chain", "rasd-chain"),
    *(
        "masked_diffusion-chain",
        "suffix_model-chain",
        "s2d-eagle2",
        "online_sd-eagle2",
        "oracle-eagle2",
    ),
    *("model-static", "model-specdec_pp", "del_exit", "foreal", "fs_gen"),
    *("model-eagle2", "eagle3-eagle2", "lookahead", "speculative_jacobi", "pearl"),
    *("ead", "specee", "first", "forced", "masked_diffusion-chain"),
    *("dflash-best_first", "dflash2-best_first", "treeflash-best_first"),
    *("domino-static", "p_eagle-static", "pard-chain", "sam_decoding-eagle"),
)


# Transforms that meet every drafter together: a program for each alone took hours.
TOGETHER = {
    "penalties": (
        "transforms/repetition_penalty",
        "transforms/frequency_penalty",
        "transforms/presence_penalty",
        "transforms/min_new_tokens",
        "transforms/dry",
        "transforms/no_repeat_ngram",
    ),
    "bias": (
        "transforms/logit_bias",
        "transforms/ban_tokens",
        "transforms/rpg",
        "constraints/ctgs",
    ),
    "truncation": ("transforms/top_k", "transforms/top_p", "transforms/min_p"),
    "clusters": ("transforms/key_cluster",),
    "bars": (
        "transforms/typical",
        "transforms/epsilon",
        "transforms/eta",
        "transforms/top_n_sigma",
    ),
    "feedback": ("transforms/mirostat", "transforms/xtc"),
    "momentum": ("transforms/momentum",),
    "classes": ("transforms/gedi", "transforms/uscd"),
    "streams": ("transforms/contrastive", "transforms/proxy"),
    "datastore": ("transforms/knn_lm",),
    "regex": ("constraints/regex",),
    "grammar": ("constraints/grammar",),
    "token grammar": ("constraints/diffusion_cfg",),
    "host": ("constraints/host",),
    "monitor": ("constraints/monitor",),
    "aligned": ("constraints/asap",),
}

# Groups like others that CI runs; these run with the long tests.
ALIKE_GROUPS = (
    "clusters",
    "bars",
    "momentum",
    "classes",
    "datastore",
    "regex",
    "aligned",
    "monitor",
    "token grammar",
)


def each(cases: dict[str, Method]) -> list:
    """The cases as parameters of a test."""
    return [
        pytest.param(method, id=name, marks=[pytest.mark.long] * (name in RARE))
        for name, method in cases.items()
    ]
