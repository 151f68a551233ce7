"""What `generate` returns."""

from dataclasses import dataclass
from typing import Any

from decoding.loops import stats


@dataclass(frozen=True, repr=False)
class Output:
    """The generated texts: one entry per prompt, or a list of `n` entries if `n > 1`.

    Prompts are not repeated, unless `echo` asks for it. An EOS or a stop token that
    ended a text is its last token.

    Attributes:
        tokens: the text's ids, a list of M int.
        texts: a str, which ends before EOS, a stop token or a stop string. None
            without a tokenizer.
        logprobs: M floats: log-probability of each token under the target's raw law,
            without temperature and transforms, where the loop chose it.
        origin: M int: each token's depth as an accepted draft; 0: the target's own.
        finish_reason: "eos", "stop" (a stop string or token) or "length".
        memory: the drafter's state, for the next call.
        exits: the exit's counts, such as SpecEE's tokens by the layers that they ran.
        stats: a `decoding.loops.stats.Stats`: figures of all rows, and arrays [B] of
            the B = prompts · n rows.
        guarantee: "LAW", "ARGMAX" or "LOSSY", of the method at these temperatures.
        top_logprobs: M lists of the k best (token, log-probability), the best first;
            None unless asked for.
        scores: of a search: the value that it ranked each text by. Else None.
        prompt_logprobs: one list a prompt, whatever `n` is: the log-probability of
            each token, None for the first. None unless asked for.
        prefixes: with a prefix store, what was loaded for each of the B rows: a
            `prefix_store.Loaded`. Else None.
        accepted: under a constraint, whether each text is a whole one of its grammar;
            one that was cut by its limit may not be. Else None.
        engine: under a constraint, where each prompt's masks are computed: "device",
            "host", or None without one. Else None.
        forced: under a constraint, how many tokens of each text are those that the
            grammar determines, in the tokenizer's own spelling. Else None.
        order: of a diffusion model, M int: the forward that committed each token,
            counted from 0. Else None.

    With `echo`, `tokens` and `texts` begin with the prompt. `origin`, `order` and
    `top_logprobs` are None at its tokens. `logprobs` are None there too, or with
    `prompt_logprobs` those.
    """

    tokens: list
    texts: list | None
    logprobs: list
    origin: list
    finish_reason: list
    memory: Any
    exits: Any
    stats: stats.Stats
    guarantee: str
    top_logprobs: list | None = None
    prompt_logprobs: list | None = None
    scores: list | None = None
    prefixes: list | None = None
    accepted: list | None = None
    engine: list | None = None
    forced: list | None = None
    order: list | None = None

    def __repr__(self) -> str:
        new = int(self.stats.new_tokens.sum())
        return (
            f"Output({len(self.tokens)} prompts, {new} tokens, "
            f"{self.stats.tokens_per_call:.2f} a call, {self.guarantee})"
        )
