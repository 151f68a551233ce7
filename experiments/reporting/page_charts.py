"""Draw the page's charts with matplotlib as SVG; the page's CSS colours them."""

import functools
import io
import itertools
import re
import textwrap
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

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
WIDTH = 360  # of every chart, in pixels of its own; the page scales it to its card
LETTER = 6.8  # pixels of a wide font's average letter
NAME = 20  # longest line of a name beside its bars; longer names are broken
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
Spans = Mapping[str, Sequence[tuple[float, float]]]


class Bar(NamedTuple):
    """A bar and its whisker; no whisker where `ends` is None.

    Attributes:
        value: its length.
        ends: (low, high) of the whisker.
        hollow: draw the outline alone.
        name: the bar in words, for screen readers.
    """

    value: float
    ends: tuple[float, float] | None = None
    hollow: bool = False
    name: str = ""


class Group(NamedTuple):
    """The bars that share a name, one below the other; `hue` None: muted."""

    name: str
    hue: int | None
    bars: Sequence[Bar]


def bars(
    groups: Sequence[Group],
    label: str,
    top: float,
    origin: float = 1.0,
    band: tuple[float, float] | None = None,
) -> str:
    """Draw horizontal bars in groups, with a dashed line at `origin`.

    Args:
        groups: the bars by name, from above.
        label: the values in words, for screen readers; the values are added.
        top: the largest value of all charts that share this scale.
        origin: the place of the dashed line.
        band: (low, high) of a shaded band behind the bars.
    """
    names = [_broken(group.name) for group in groups]
    longest = max(len(line) for name in names for line in name)
    left = max(int(LETTER * longest) + 12, 60)
    heights = [
        max(15 * len(group.bars), 14 * len(name)) + 9
        for group, name in zip(groups, names)
    ]
    height = sum(heights) + 26
    said = [
        f"{group.name} {bar.name} {bar.value:.2f}".replace("  ", " ")
        for group in groups
        for bar in group.bars
    ]
    with matplotlib.rc_context(STYLE):
        figure, axes = _axes(WIDTH, height, (left, 44, 4, 22))
        end = max(top, origin * 1.2)
        marks = [x for x in _ticks(end) if x <= end]
        axes.set(xlim=(0, end), ylim=(sum(heights), 0))
        axes.set_xticks(marks, [f"{x:g}" for x in marks])
        axes.grid(visible=False, axis="y")
        if band:
            axes.axvspan(*band, color=MUTED, alpha=0.22, lw=0)
        middles = []
        for group, tall, end in zip(groups, heights, itertools.accumulate(heights)):
            middles.append(end - tall / 2)
            hue = MUTED if group.hue is None else HUES[group.hue % len(HUES)]
            for i, bar in enumerate(group.bars):
                _bar(axes, middles[-1] + 15 * (i - (len(group.bars) - 1) / 2), bar, hue)
        axes.set_yticks(middles, ["\n".join(name) for name in names], color=INK)
        axes.axvline(origin, color=MUTED, lw=1, ls=(0, (3, 3)))
        return _svg(figure, f"{label}: {', '.join(said)}")


def _bar(axes: Any, at: float, bar: Bar, hue: str) -> None:
    """Draw a bar at height `at`, its whisker and its value."""
    fill = "none" if bar.hollow else hue
    axes.barh(at, bar.value, 10, color=fill, edgecolor=hue, lw=1.4)
    if bar.ends:
        axes.plot(bar.ends, (at, at), color=INK, lw=1.4)
        for end in bar.ends:
            axes.plot((end, end), (at - 3.5, at + 3.5), color=INK, lw=1.4)
    axes.annotate(
        f"{bar.value:.2f}",
        (max(bar.value, *(bar.ends or (0.0,))), at),
        (6, 0),
        textcoords="offset points",
        va="center_baseline",
        color=MUTED if bar.hollow else INK,
    )


def _broken(name: str) -> list[str]:
    """Break a long name into lines, after `_`, `-` or `/` where it has them."""
    pieces = re.sub(r"(?<=[_/\-])", " ", name).split(" ")
    lines = [""]
    for piece in pieces:
        joined = lines[-1] + piece
        if len(joined) <= NAME or not lines[-1]:
            lines[-1] = joined
        else:
            lines.append(piece)
    return [part for line in lines for part in textwrap.wrap(line, NAME) or [""]]


def lines(
    series: Sequence[Series],
    label: str,
    across: str,
    colours: Mapping[str, int],
    log: bool = False,
    top: float = 0.0,
    spans: Spans | None = None,
) -> str:
    """Draw lines with dots; each has a hue, a marker and a dash of its number.

    Args:
        series: (name, xs, ys) each.
        label: the values in words, for screen readers.
        across: the label of the x axis.
        colours: a name's number among the styles.
        log: put x at powers of two.
        top: the end of the y scale; 0: the largest y.
        spans: name -> (low, high) at each x, drawn as whiskers.
    """
    spans = spans or {}
    highest = max(
        *(y for _, _, ys in series for y in ys),
        *(high for ends in spans.values() for _, high in ends),
        0.0,
    )
    marks = _ticks(top or highest)
    labels = [f"{y:g}" for y in marks]
    left = int(LETTER * max(map(len, labels))) + 14
    with matplotlib.rc_context(STYLE):
        figure, axes = _axes(WIDTH, 230, (left, 16, 14, 38))
        axes.set(ylim=(0, marks[-1]))
        axes.set_yticks(marks, labels)
        if log:
            axes.set_xscale("log", base=2)
            axes.minorticks_off()
        xs = sorted({x for _, values, _ in series for x in values})
        marked = xs if len(xs) <= 10 else xs[:: len(xs) // 8 + 1]
        axes.set_xticks(marked, [f"{x:g}" for x in marked])
        axes.grid(visible=False, axis="x")
        axes.margins(x=0)
        axes.set_xlabel(across)
        for name, values, ys in series:
            style = _style(colours[name])
            if name in spans:
                low, high = zip(*spans[name])
                axes.vlines(values, low, high, color=style["color"], lw=1.4)
            axes.plot(values, ys, clip_on=False, **style)
        return _svg(figure, label)


@functools.cache
def key(number: int, bar: bool = False, hollow: bool = False) -> str:
    """Draw the sign of a legend: a line of `lines`, or a bar of `bars`."""
    with matplotlib.rc_context(STYLE):
        figure, axes = _axes(26, 12, (2, 2, 1, 1))
        axes.set_axis_off()
        axes.set(xlim=(0, 1), ylim=(0, 1))
        if bar:
            fill = "none" if hollow else MUTED
            axes.barh(0.5, 1, 0.8, color=fill, edgecolor=MUTED, lw=1.4, clip_on=False)
        else:
            axes.plot((0, 0.5, 1), (0.5,) * 3, markevery=(1, 2), **_style(number))
        return _svg(figure, "").replace(' aria-label=""', ' aria-hidden="true"')


def _style(number: int) -> dict[str, Any]:
    """Return the look of line `number`: no two of 28 are alike, in grey as well."""
    lap, place = divmod(number, len(HUES))
    return {
        "color": HUES[place],
        "ls": plots.STYLES[lap % len(plots.STYLES)],
        "marker": plots.MARKERS[number % len(plots.MARKERS)],
        "lw": 1.8,
        "ms": 5.6,
        "mew": 0,
    }


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
