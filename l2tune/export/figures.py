"""The figures of a report, each one inline SVG without a document around it. Needs matplotlib."""

import collections
import contextlib
import io
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from l2tune.export.published import Published
from l2tune.export.timed import NAMES, Row
from l2tune.spec.roofline import Peak

OURS, TORCH, FLOOR = "#1f5fbf", "#8a8f98", "#d1495b"
_OTHERS = ("#e0902f", "#2f9e77", "#8a63c8", "#c2568f", "#5a7d2a", "#a0522d")
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: small, searchable, and in the reader's font
    "svg.hashsalt": "l2tune",  # the same rows give the same figure
    "font.family": "sans-serif",
    "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans"],
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9aa0a8",
    "axes.grid": False,
    "grid.color": "#e4e6ea",
}
_ANNOTATED = 12
"""A heat map of more sizes than this a side has no numbers in its cells."""
_MOST_MAPS = 24
_RANGE = (0.5, 2.0)
"""Speed-ups at which a heat map's colours end."""


def distribution(rows: Sequence[Row], published: Sequence[Published]) -> str:
    """Speed-up over torch.matmul of l2tune and of every library, each sorted by itself."""
    series = {"l2tune": [row.speedup for row in rows]}
    for name in dict.fromkeys(name for row in rows for name in row.libraries):
        series[NAMES.get(name, name)] = [
            row.torch.us / row.libraries[name] for row in rows if name in row.libraries
        ]
    sizes = {(row.m, row.n, row.k) for row in rows}
    for table in published:
        values = [found["torch"] for mnk, found in table.speedups.items() if mnk in sizes]
        if values:
            series[f"{table.name} (published)"] = values
    with _drawn(figsize=(8.6, 3.9)) as (figure, svg):
        axes = figure.add_subplot()
        axes.axhline(1.0, color=TORCH, linewidth=1)
        for index, (name, values) in enumerate(series.items()):
            ours = index == 0
            axes.plot(
                [100 * (i + 0.5) / len(values) for i in range(len(values))],
                sorted(values, reverse=True), label=name, zorder=3 if ours else 2,
                color=OURS if ours else _OTHERS[(index - 1) % len(_OTHERS)],
                linewidth=2.2 if ours else 1.2, marker="o" if len(values) <= 40 else "",
                markersize=4 if ours else 2.5, linestyle="--" if "(published)" in name else "-",
            )  # fmt: skip
        axes.set_xlabel("share of products, each curve from its best to its worst (%)")
        axes.set_ylabel("torch.matmul / it, device time")
        _speedup_axis(axes)
        axes.grid(axis="y")
        axes.set_xlim(0, 100)
        axes.legend(frameon=False, fontsize=8)
    return svg.getvalue()


def heat_maps(rows: Sequence[Row]) -> str:
    """Speed-up over (m, n), a map for each k, of products that are not batched.

    Those of the most frequent layout and dtype; empty if there are none.
    """
    kinds = [(row.layout, row.dtype) for row in rows if row.batch == 1]
    if not kinds:
        return ""
    kind = max(dict.fromkeys(kinds), key=kinds.count)
    shown = [row for row in rows if row.batch == 1 and (row.layout, row.dtype) == kind]
    counts = collections.Counter(row.k for row in shown)
    ks = sorted(k for k, _ in counts.most_common(_MOST_MAPS))
    small = all(len({row.n for row in shown if row.k == k}) <= 6 for k in ks)
    columns, side = (min(3, len(ks)), 3.0) if small else (min(2, len(ks)), 4.6)
    lines = math.ceil(len(ks) / columns)
    with _drawn(figsize=(side * columns, side * 0.86 * lines)) as (figure, svg):
        for index, k in enumerate(ks):
            axes = figure.add_subplot(lines, columns, index + 1)
            _heat_map(axes, [row for row in shown if row.k == k])
            axes.set_title(f"k = {k}", fontsize=9)
    return svg.getvalue()


def _heat_map(axes: Axes, rows: Sequence[Row]) -> None:
    ms, ns = (sorted({getattr(row, name) for row in rows}) for name in "mn")
    cells = [[math.nan] * len(ns) for _ in ms]
    for row in rows:
        cells[ms.index(row.m)][ns.index(row.n)] = row.speedup
    axes.set_facecolor("#dfe2e7")  # what was not measured
    axes.pcolormesh(cells, cmap="RdYlGn", norm=LogNorm(*_RANGE), edgecolor="white", linewidth=0.4)
    if max(len(ms), len(ns)) <= _ANNOTATED:
        for y, line in enumerate(cells):
            for x, value in enumerate(line):
                if not math.isnan(value):
                    axes.text(x + 0.5, y + 0.5, f"{value:.2f}", ha="center", va="center",
                              fontsize=7.5 if len(ns) <= 6 else 6.5)  # fmt: skip
    axes.set_xticks([x + 0.5 for x in range(len(ns))], list(map(str, ns)), rotation=45, fontsize=7)
    axes.set_yticks([y + 0.5 for y in range(len(ms))], list(map(str, ms)), fontsize=7)
    axes.set_xlabel("n", fontsize=8)
    axes.set_ylabel("m", fontsize=8)
    axes.tick_params(length=0)


def roofline(rows: Sequence[Row], roof: Peak | None) -> str:
    """Rate over arithmetic intensity: l2tune, torch.matmul, and each product's floor.

    Args:
        rows: What was timed.
        roof: Rates that very good kernels reach on the GPU, drawn as lines where they are known.
    """
    with _drawn(figsize=(8.6, 4.4)) as (figure, svg):
        axes = figure.add_subplot()
        x = [row.intensity for row in rows]
        if roof is not None:
            ends = min(x) / 1.5, max(x) * 1.5
            ridge = roof.tflops / roof.tb_per_s
            xs = sorted({*ends, min(max(ridge, ends[0]), ends[1])})
            rates = [min(roof.tb_per_s * at, roof.tflops) for at in xs]
            name = f"{roof.tb_per_s:.2f} TB/s, {roof.tflops:.0f} TFLOP/s"
            axes.plot(xs, rates, color=FLOOR, linewidth=1.2, label=name)
        size = 26 if len(rows) <= 100 else 9
        floors = [row for row in rows if row.floor_us]
        xs, ys = _points(floors, lambda row: row.floor_us)
        axes.scatter(xs, ys, marker="_", s=2 * size, color=FLOOR, label="floor of each product")
        xs, ys = _points(rows, lambda row: row.torch.us)
        axes.scatter(xs, ys, s=size, facecolors="none", edgecolors=TORCH, label="torch.matmul")
        xs, ys = _points(rows, lambda row: row.served_us)
        axes.scatter(xs, ys, s=0.6 * size, color=OURS, label="l2tune")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("arithmetic intensity (operations for each byte that must move)")
        axes.set_ylabel("TFLOP/s")
        axes.grid(which="major")
        axes.set_axisbelow(True)
        axes.legend(frameon=False, fontsize=8, loc="lower right")
    return svg.getvalue()


def _points(rows: Sequence[Row], us: Callable[[Row], float]) -> tuple[list[float], list[float]]:
    return [row.intensity for row in rows], [row.flops / us(row) * 1e-6 for row in rows]


def _speedup_axis(axes: Axes) -> None:
    """A logarithmic axis with the ticks that a reader of speed-ups looks for."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    ticks = (0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5, 1.7, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0)
    inside = [tick for tick in ticks if low <= tick <= high]
    axes.set_yticks(inside, [f"{tick:g}" for tick in inside])
    axes.minorticks_off()


@contextlib.contextmanager
def _drawn(*, figsize: tuple[float, float]) -> Iterator[tuple[Figure, io.StringIO]]:
    """Give an empty figure and where its SVG is when the block has ended."""
    svg, whole = io.StringIO(), io.StringIO()
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=figsize, layout="constrained")
        yield figure, svg
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(whole, format="svg", metadata=metadata, transparent=True)
    text = whole.getvalue()
    svg.write(text[text.index("<svg") :])
