"""Objectives of draft heads: one file a paper, each with the same three functions.

    init(key, model, target, ..) -> params of the head, for the target's params
    objective(model, ..) -> Objective: the loss, its weight, and the taps that it reads
    guesses(params, model, batch, teacher, depth, ..) -> for each depth d below `depth`,
        states [B, T, ..] and the function from them to logits [B, T, V] of token
        t + 2 + d, given the text's tokens up to t + 1 + d

`model` is the target's, and `batch` is described in `training/teacher/outputs.py`.
`part` is the number of positions whose logits exist at a time; 0: all.
"""
