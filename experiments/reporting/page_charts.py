"""Draw the page's charts with matplotlib as SVG; the page's CSS colours them."""

import io
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import matplotlib
from matplotlib import ticker
from matplotlib.figure import Figure

from experiments.reporting import plots

# Each placeholder colour is replaced by a variable of page.css, so charts follow the
# page into dark mode.
INK, MUTED, LINE = "#010101", "#020202", "#030303"
HUES = tuple(f"#0400{i:02x}" for i in range(len(plots.COLOURS)))
VARIABLES = {INK: "ink", MUTED: "muted", LINE: "line"} | {
    hue: f"c{i}" for i, hue in enumerate(HUES)
}
STYLE: Any = {
    "svg.fonttype": "none",  # text stays text, in the page's font
    "svg.hashsalt": "page",  # the same report gives the same bytes
    "font.size": 11,
    "text.color": INK,
    "axes.edgecolor": "none",
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.labelcolor": MUTED,
    "grid.color": LINE,
    "grid.linewidth": 1,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "ytick.major.pad": 6,
}
NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
Series = tuple[str, Sequence[float], Sequence[float]]


def bars(
    rows: Sequence[tuple[str, float, float, float]],
    label: str,
    colours: Mapping[str, int],
    top: float,
    origin: float = 1.0,
) -> str:
    """Draw horizontal bars with a dashed line at `origin`.

    Args:
        rows: (name, value, low, high) each; no whisker where high <= low.
        label: the values in words, for screen readers.
        colours: a name's number among `HUES`.
        top: the largest value of all charts that share this scale.
    """
    width, height = 360, 24 * len(rows) + 26
    with matplotlib.rc_context(STYLE):
        figure, axes = _axes(width, height, (118, 44, 4, 20))
        marks = _ticks(max(top, origin * 1.2))
        axes.set(xlim=(0, marks[-1]), xticks=marks, ylim=(len(rows) - 0.4, -0.6))
        axes.grid(visible=False, axis="y")
        axes.set_yticks(range(len(rows)), [name for name, *_ in rows], color=INK)
        for at, (name, value, low, high) in enumerate(rows):
            axes.barh(at, value, 0.54, color=HUES[colours[name] % len(HUES)])
            if high > low:
                axes.plot((low, high), (at, at), color=INK, lw=1.6)
            axes.annotate(
                f"{value:.2f}",
                (max(value, high), at),
                (5, 0),
                textcoords="offset points",
                va="center_baseline",
            )
        axes.axvline(origin, color=MUTED, lw=1, ls=(0, (3, 3)))
        return _svg(figure, label)


def lines(
    series: Sequence[Series],
    label: str,
    across: str,
    colours: Mapping[str, int],
    log: bool = False,
    top: float = 0.0,
) -> str:
    """Draw lines with dots.

    Args:
        series: (name, xs, ys) each.
        label: the values in words, for screen readers.
        across: the label of the x axis.
        colours: a name's number among `HUES`.
        log: put x at powers of two.
        top: the end of the y scale; 0: the largest y.
    """
    with matplotlib.rc_context(STYLE):
        figure, axes = _axes(420, 240, (40, 12, 14, 38))
        marks = _ticks(top or max(y for _, _, ys in series for y in ys))
        axes.set(ylim=(0, marks[-1]), yticks=marks)
        if log:
            axes.set_xscale("log", base=2)
            axes.minorticks_off()
        xs = sorted({x for _, values, _ in series for x in values})
        marked = xs if len(xs) <= 12 else xs[:: len(xs) // 10 + 1]
        axes.set_xticks(marked, [f"{x:g}" for x in marked])
        axes.grid(visible=False, axis="x")
        axes.margins(x=0)
        axes.set_xlabel(across)
        for name, values, ys in series:
            hue = HUES[colours[name] % len(HUES)]
            axes.plot(values, ys, "o-", color=hue, lw=2, ms=5.2, mew=0, clip_on=False)
        return _svg(figure, label)


def _axes(width: int, height: int, edges: tuple[int, int, int, int]) -> Any:
    """Make a figure and its axes, in pixels; `edges`: left, right, above, below."""
    left, right, above, below = edges
    figure = Figure((width / 72, height / 72), dpi=72, facecolor="none")
    axes = figure.add_axes(
        (
            left / width,
            below / height,
            (width - left - right) / width,
            (height - above - below) / height,
        ),
        facecolor="none",
    )
    return figure, axes


def _ticks(top: float) -> list[float]:
    """Choose round tick values from 0 to at least `top`."""
    locator = ticker.MaxNLocator(5, steps=[1, 2, 2.5, 5, 10])
    return [float(x) for x in locator.tick_values(0, top if top > 0 else 1)]


def _svg(figure: Figure, label: str) -> str:
    """Convert the figure to an <svg> element, without the header of a file."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata=NO_METADATA)
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
    text = re.sub(r' id="[\w.]+_\d+"', "", text)  # the same in every chart
    text = re.sub(r'style="font-size: [^"]*sans-serif; ', 'style="', text)  # page.css
    text = re.sub(r'"([\d.]+)pt"', r'"\1"', text)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, f"var(--{variable})")
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)
