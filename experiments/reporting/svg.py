"""Small charts and token trees as SVG that takes its colours from the page's CSS."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

TREE_COLUMN, TREE_ROW = 92, 17
CHARACTERS = 10  # of a token's text in a tree


def _text(x: float, y: float, said: str, kind: str = "", anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">'
        f"{escape(said)}</text>"
    )


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} class="{kind}"/>'


def _frame(width: float, height: float, parts: Sequence[str], label: str) -> str:
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img" aria-label="{escape(label)}">'
        + "".join(parts)
        + "</svg>"
    )


def ticks(top: float, count: int = 5) -> list[float]:
    """Round values from 0 to at least `top`."""
    if top <= 0:
        return [0.0, 1.0]
    rough = top / count
    unit = 10 ** math.floor(math.log10(rough))
    step = next(s * unit for s in (1, 2, 2.5, 5, 10) if s * unit >= rough)
    return [i * step for i in range(math.ceil(top / step - 1e-9) + 1)]


def intervals(
    rows: Sequence[tuple[str, float, float, float]],
    label: str,
    colours: Mapping[str, int],
    top: float,
    origin: float = 1.0,
) -> str:
    """Horizontal bars, (name, value, low, high) each; a dashed line at `origin`.

    `top` is the end of the scale, so that several charts can share one.
    """
    left, width, step = 118, 360, 24
    marks = ticks(max(top, origin * 1.2))
    scale = (width - left - 44) / marks[-1]
    height = step * len(rows) + 26
    parts = []
    for mark in marks:
        x = left + mark * scale
        parts.append(_line(x, 4, x, height - 20, "grid"))
        parts.append(_text(x, height - 6, f"{mark:g}", "tick", "middle"))
    for i, (name, value, low, high) in enumerate(rows):
        y = 6 + i * step
        end = left + value * scale
        parts.append(_text(left - 8, y + 13, name, "name", "end"))
        parts.append(
            f'<rect x="{left}" y="{y + 3}" width="{max(value * scale, 1):.1f}" '
            f'height="13" rx="3" class="fill s{colours[name] % 7}"/>'
        )
        if high > low:
            x1, x2 = left + low * scale, left + high * scale
            parts.append(_line(x1, y + 9.5, x2, y + 9.5, "whisker"))
        after = max(end, left + high * scale)
        parts.append(_text(after + 5, y + 14, f"{value:.2f}", "value"))
    x = left + origin * scale
    parts.append(_line(x, 2, x, height - 18, "origin"))
    return _frame(width, height, parts, label)


def lines(
    series: Sequence[tuple[str, Sequence[float], Sequence[float]]],
    label: str,
    across: str,
    colours: Mapping[str, int] | None = None,
    log: bool = False,
    top: float = 0.0,
) -> str:
    """Lines with dots: (name, xs, ys) each; `log` is for base-2 widths."""
    if colours is None:
        colours = {name: i for i, (name, _, _) in enumerate(series)}
    left, right, width, height = 40, 12, 420, 240
    bottom = height - 38
    at = (lambda x: math.log2(x)) if log else float
    xs = sorted({x for _, values, _ in series for x in values})
    low, high = at(xs[0]), at(xs[-1])
    span = (high - low) or 1
    marks = ticks(top or max(y for _, _, ys in series for y in ys))
    place = lambda x: left + (at(x) - low) / span * (width - left - right)
    rise = lambda y: bottom - y / marks[-1] * (bottom - 14)
    parts = []
    for mark in marks:
        parts.append(_line(left, rise(mark), width - right, rise(mark), "grid"))
        parts.append(_text(left - 6, rise(mark) + 3, f"{mark:g}", "tick", "end"))
    for x in xs if len(xs) <= 12 else xs[:: len(xs) // 10 + 1]:
        parts.append(_text(place(x), bottom + 14, f"{x:g}", "tick", "middle"))
    parts.append(_text((left + width) / 2, height - 6, across, "tick", "middle"))
    for name, values, ys in series:
        hue = colours[name] % 7
        points = [(place(x), rise(y)) for x, y in zip(values, ys, strict=True)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" class="stroke s{hue}"/>')
        dots = [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" class="fill s{hue}"/>'
            for x, y in points
        ]
        parts += dots
    legend = "".join(
        f'<span class="key"><i class="dot s{colours[name] % 7}"></i>'
        f"{escape(name)}</span>"
        for name, _, _ in series
    )
    return _frame(width, height, parts, label) + f'<div class="legend">{legend}</div>'


def _shown(token: str) -> str:
    said = token.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "␣")
    return said if len(said) <= CHARACTERS else said[: CHARACTERS - 1] + "…"


def tree(entry: dict[str, Any]) -> str:
    """One round: nodes by depth; the accepted path and the own token stand out."""
    path = entry["path"]
    last, own = path[-1] if path else 0, len(entry["parents"])
    # The target's own token is drawn as one more child of the node it follows.
    parents = [*entry["parents"], last]
    tokens = [*entry["tokens"], entry["token"]]
    live = [i for i, kind in enumerate([*entry["kind"], 1]) if kind]
    depth: dict[int, int] = {}
    children: dict[int, list[int]] = {i: [] for i in live}
    for i in live:  # a parent comes before its children
        depth[i] = 0 if parents[i] < 0 else depth[parents[i]] + 1
        if parents[i] >= 0:
            children[parents[i]].append(i)
    height: dict[int, float] = {}
    leaves = 0
    for i in _leaves_first(0, children):
        if children[i]:
            ends = [height[c] for c in children[i]]
            height[i] = (ends[0] + ends[-1]) / 2
        else:
            height[i] = leaves
            leaves += 1
    kinds = dict.fromkeys(path, "on") | {0: "root", own: "own"}
    x = {i: 6 + depth[i] * TREE_COLUMN for i in live}
    y = {i: 14 + height[i] * TREE_ROW for i in live}
    parts, wide = [], TREE_COLUMN - 18
    for i in sorted(live[1:], key=lambda i: i in kinds):
        a, b = x[parents[i]] + wide, x[i]
        mid, up, down = (a + b) / 2, y[parents[i]], y[i]
        kind = f"edge {kinds[i]}" if i in kinds else "edge"
        curve = f"M{a:.0f},{up:.1f} C{mid:.0f},{up:.1f} {mid:.0f},{down:.1f}"
        parts.append(f'<path d="{curve} {b:.0f},{down:.1f}" class="{kind}"/>')
    for i in live:
        parts.append(_node(x[i], y[i], tokens[i], kinds.get(i, ""), wide))
    label = f"{len(live) - 2} drafts, {len(path)} accepted"
    size = (max(x.values()) + TREE_COLUMN, 26 + (leaves - 1) * TREE_ROW)
    return _frame(size[0], size[1], parts, label)


def _leaves_first(root: int, children: dict[int, list[int]]) -> list[int]:
    order, stack = [], [root]
    while stack:
        node = stack.pop()
        order.append(node)
        stack += children[node]
    return order[::-1]  # children before parents, first siblings on top


def _node(x: float, y: float, token: str, kind: str, wide: float) -> str:
    return (
        f'<rect x="{x:.0f}" y="{y - 7:.1f}" width="{wide:.0f}" height="14" rx="4" '
        f'class="node {kind}"/>' + _text(x + 4, y + 3.5, _shown(token), f"token {kind}")
    )
