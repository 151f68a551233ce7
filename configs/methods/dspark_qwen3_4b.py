"""DSpark on Qwen3-4B: the published heads, on the paper's prompts.

Cheng et al., *DSpark*, 2026, arXiv 2607.05147, table 1: first turns, thinking off,
temperature 1, 2,048 new tokens. The heads become a folder once:

python -m experiments.import_heads --model=Qwen/Qwen3-4B \\
    --heads=deepseek-ai/dspark_qwen3_4b_block7 --export=runs/heads/dspark_qwen3_4b
python -m experiments.run --config=configs/methods/dspark_qwen3_4b.py:gsm8k \\
    --config.data=eval_datasets/gsm8k.jsonl --workdir=runs/dspark_gsm8k

Beside:  `math500` and `humaneval` in place of `gsm8k`. A line of a file is
         `{"turns": [text]}`, a question with its instruction, as in the evaluation of
         github.com/deepseek-ai/DeepSpec.
Expects: the figures of `EXPECTED` within 6 %: another engine measured 6.12, 5.69 and
         5.11 with these heads, and 128 texts vary by some 2 %.

Paper:   6.11, 5.70, 5.38 tokens a call on GSM8K, MATH-500, HumanEval.
Here:    not measured: the weights are not at hand.
"""

import ml_collections

from models.errors import ConfigError

NAME, TASK = "dspark_qwen3_4b", "prompts"
EXPECTED = {"gsm8k": 6.11, "math500": 5.70, "humaneval": 5.38}


def get_config(task: str = "gsm8k") -> ml_collections.ConfigDict:
    """Return a recipe of the stage `evaluate`.

    Args:
        task: one of `EXPECTED`.

    Raises:
        ConfigError: another one.
    """
    if task not in EXPECTED:
        raise ConfigError(f"{NAME}:{task!r}: use one of {[*EXPECTED]}")
    config = ml_collections.ConfigDict()
    config.model = "Qwen/Qwen3-4B"
    # The parts and their arguments, as decoding.Method.from_config reads them.
    config.method = {
        "drafter": "drafters/dspark",
        "topology": {"name": "topologies/chain", "length": 7},
        "verifier": "verifiers/rejection",
    }
    config.methods = ("plain", NAME)
    config.trained = {NAME: f"runs/heads/{NAME}"}
    config.data = f"eval_datasets/{task}.jsonl"
    config.tasks = (TASK,)
    config.chat_variables = {"enable_thinking": False}
    config.temperatures = (1.0,)
    config.prompts = 128
    config.prompt_tokens = 1024
    config.max_new_tokens = 2048
    config.repeats = 1
    config.curve = False
    config.expected = (
        (f"{NAME}-{TASK}-t1-b1-s0", {"tokens_per_call": EXPECTED[task]}),
    )
    config.tolerance = {"tokens_per_call": 0.06}
    return config
