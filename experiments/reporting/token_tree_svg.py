"""Draw token trees as SVG; the page's CSS colours them."""

from collections.abc import Sequence
from html import escape
from typing import Any

COLUMN, ROW = 92, 17  # pixels between depths, between siblings
CHARACTERS = 10  # of a token's text in a tree


def _text(
    x: float, y: float, content: str, kind: str = "", anchor: str = "start"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">'
        f"{escape(content)}</text>"
    )


def _frame(width: float, height: float, parts: Sequence[str], label: str) -> str:
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img" aria-label="{escape(label)}">'
        + "".join(parts)
        + "</svg>"
    )


def _shown(token: str) -> str:
    text = token.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "␣")
    return text if len(text) <= CHARACTERS else text[: CHARACTERS - 1] + "…"


def token_tree(entry: dict[str, Any]) -> str:
    """Draw one round: nodes by depth, with the accepted path and the target's token."""
    path = entry["path"]
    last, extra = path[-1] if path else 0, len(entry["parents"])
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
    kinds = dict.fromkeys(path, "on") | {0: "root", extra: "own"}
    x = {i: 6 + depth[i] * COLUMN for i in live}
    y = {i: 14 + height[i] * ROW for i in live}
    parts, wide = [], COLUMN - 18
    for i in sorted(live[1:], key=lambda i: i in kinds):
        a, b = x[parents[i]] + wide, x[i]
        mid, up, down = (a + b) / 2, y[parents[i]], y[i]
        kind = f"edge {kinds[i]}" if i in kinds else "edge"
        curve = f"M{a:.0f},{up:.1f} C{mid:.0f},{up:.1f} {mid:.0f},{down:.1f}"
        parts.append(f'<path d="{curve} {b:.0f},{down:.1f}" class="{kind}"/>')
    for i in live:
        parts.append(_node(x[i], y[i], tokens[i], kinds.get(i, ""), wide))
    label = f"{len(live) - 2} drafts, {len(path)} accepted"
    size = (max(x.values()) + COLUMN, 26 + (leaves - 1) * ROW)
    return _frame(size[0], size[1], parts, label)


def _leaves_first(root: int, children: dict[int, list[int]]) -> list[int]:
    """Order nodes so that children come before their parents."""
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
