"""Rows of results -> one HTML page that needs nothing else: figures are in it, no script, no link.

What the page says is computed here from the rows; nothing is measured.
"""

import html
import re
from collections.abc import Iterable, Mapping, Sequence

from l2tune.errors import InfrastructureError, UnsupportedProblemError
from l2tune.export import summary
from l2tune.export.published import Published
from l2tune.export.timed import NAMES, Row
from l2tune.spec.gpu import Gpu
from l2tune.spec.roofline import sustained

_ENDS = 10
_STYLE = """
body { font: 15px/1.5 system-ui, "Segoe UI", Helvetica, Arial, sans-serif; color: #1c2026;
       max-width: 1080px; margin: 2em auto; padding: 0 1.2em; background: #fff }
h1 { font-size: 1.7em; margin-bottom: .1em } h2 { font-size: 1.2em; margin: 2em 0 .4em }
p.note, figcaption { color: #5b626c; font-size: .88em; margin: .3em 0 }
figure { margin: 1em 0 } svg { max-width: 100%; height: auto }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-size: .86em; font-variant-numeric: tabular-nums }
th, td { padding: .26em .7em; border-bottom: 1px solid #e4e6ea; text-align: right;
         white-space: nowrap }
th { color: #5b626c; font-weight: 600; border-bottom: 2px solid #c9cdd3 }
td.text, th.text { text-align: left } tbody tr:hover { background: #f4f6f9 }
td.good { color: #17754f } td.bad { color: #b3243b } code { font-size: .92em }
.cards { display: flex; flex-wrap: wrap; gap: .8em; margin: 1.2em 0 }
.card { border: 1px solid #dfe2e7; border-radius: 8px; padding: .6em 1em; min-width: 9.5em }
.card b { display: block; font-size: 1.6em; color: #1f5fbf } .card span { color: #5b626c;
  font-size: .84em } ul.remarks { color: #b3243b } summary { cursor: pointer; margin-top: 2em }
"""


def report(
    rows: Sequence[Row],
    *,
    command: str,
    facts: Mapping[str, str],
    gpu: Gpu | None = None,
    published: Sequence[Published] = (),
    remarks: Sequence[str] = (),
) -> str:
    """Make the page.

    Args:
        rows: What was timed; at least one.
        command: The command that made the page.
        facts: Machine and versions, by name; what is not known is left out.
        gpu: The GPU that was timed, for the roofline's lines.
        published: Tables to stand beside ours.
        remarks: Sentences on what was not compared, as a peer that computes something else.

    Returns:
        One HTML document; the same arguments give the same one.

    Raises:
        UnsupportedProblemError: If there is no row.
        InfrastructureError: If matplotlib is not installed.
    """
    if not rows:
        raise UnsupportedProblemError("report: found no row of results, needed at least one")
    needed()
    from l2tune.export import figures  # optional, as matplotlib is

    maps = figures.heat_maps(rows)
    parts = [
        f"<h1>l2tune beside the libraries</h1><p class=note>{len(rows)} products; made by"
        f" <code>{html.escape(command)}</code></p>",
        _cards(rows),
        "".join(f"<li>{html.escape(line)}</li>" for line in remarks).join(
            ("<ul class=remarks>", "</ul>") if remarks else ("", "")
        ),
        _section(
            "Speed-up over torch.matmul",
            _figure(
                figures.distribution(rows, published),
                "Device time. l2tune is what l2tune.matmul runs inside graphs, so it is 1 where"
                " torch.matmul was the better choice.",
            ),
        ),
        _section("Summary", _summary(rows)),
        *(_section(f"Beside {table.name}", _beside(rows, table)) for table in published),
        _section(
            "Speed-up over (m, n) for each k",
            _figure(maps, "torch.matmul / l2tune, device time, products that are not batched."
                    " Red is slower, green faster, grey was not measured. Where there are more,"
                    " the 24 values of k with the most products.")
            if maps else "<p>Every product is batched.</p>",
        ),
        _section(
            "Roofline",
            _figure(
                figures.roofline(rows, None if gpu is None else sustained(gpu)),
                "The floor is what a very good kernel may reach: the larger of bytes and"
                " operations over the rates that libraries sustain, and 2 us for the launch.",
            ),
        ),
        _section(f"Best {_ENDS}", _products(_sorted(rows)[:_ENDS])),
        _section(f"Worst {_ENDS}", _products(_sorted(rows)[::-1][:_ENDS])),
        _section("Machine and versions", _facts(rows, facts)),
        f"<details><summary>All {len(rows)} products</summary>{_products(rows, published)}"
        "</details>",
    ]  # fmt: skip
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>l2tune bench</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def needed() -> None:
    """Check that figures can be drawn.

    Raises:
        InfrastructureError: If matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InfrastructureError(
            "found no matplotlib, which draws a report's figures (pip install 'l2tune[plot]')"
        ) from None


def _section(title: str, body: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2>{body}</section>"


def _figure(svg: str, caption: str) -> str:
    return f"<figure>{svg}<figcaption>{html.escape(caption)}</figcaption></figure>"


def _cards(rows: Sequence[Row]) -> str:
    lines = summary.summarise(rows)[:4]
    cards = (
        f"<div class=card><b>{line.value}</b><span>{html.escape(line.what)}</span></div>"
        for line in lines
    )
    return f"<div class=cards>{''.join(cards)}</div>"


def _summary(rows: Sequence[Row]) -> str:
    lines = [(line.what, line.value, str(line.over)) for line in summary.summarise(rows)]
    note = "Ratios are geometric means of times; above 1 the first is the slower."
    return f"<p class=note>{note}</p>" + _table(("what", "value", "products"), lines, texts=1)


def _beside(rows: Sequence[Row], published: Published) -> str:
    lines = [(*line[:-1], str(line[-1])) for line in summary.beside(rows, published)]
    note = (
        "Geometric means of speed-ups on the products that both tables hold. The published ones"
        " were taken on another machine in another way, so ratios are compared, not times."
    )
    titles = ("over", "l2tune", published.name, "l2tune higher", "products")
    return f"<p class=note>{note}</p>" + _table(titles, lines, texts=1)


def _sorted(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row.torch.us / row.gpu.us, reverse=True)


def _products(rows: Sequence[Row], published: Sequence[Published] = ()) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row.libraries))
    random_gaps = any(row.server is not None for row in rows)
    titles = [
        "product", "kernel", "eager / graph", "us", "95 %", "torch us", "torch / kernel",
        *(f"{NAMES.get(name, name)} us" for name in names), "floor us", "host us",
        "torch host us", *(["server us", "torch server us"] if random_gaps else []),
        *(f"{table.name}: speed-up" for table in published),
    ]  # fmt: skip
    lines = [
        (
            row.label, row.kernel, f"{row.eager} / {row.graph}", f"{row.gpu.us:.2f}",
            f"{row.gpu.lo:.2f}-{row.gpu.hi:.2f}", f"{row.torch.us:.2f}",
            f"{row.torch.us / row.gpu.us:.3f}",
            *(_us(row.libraries.get(name)) for name in names), f"{row.floor_us:.2f}",
            f"{row.host_us:.2f}", f"{row.torch_host_us:.2f}",
            *([_us(row.server), _us(row.server_baselines.get("torch"))] if random_gaps else []),
            *(_speedup(row, table) for table in published),
        )
        for row in rows
    ]  # fmt: skip
    verdicts = ["good" if r.gpu.beats(r.torch) else "bad" if r.slower_than_torch else ""
                for r in rows]  # fmt: skip
    return _table(titles, lines, texts=3, marked=(titles.index("torch / kernel"), verdicts))


def _us(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _speedup(row: Row, published: Published) -> str:
    if row.batch > 1 or row.layout != "nn":
        return ""
    found = published.speedups.get((row.m, row.n, row.k))
    return "" if found is None else f"{found['torch']:.3f}"


def _facts(rows: Sequence[Row], facts: Mapping[str, str]) -> str:
    clocks, powers = ([getattr(r, name) for r in rows] for name in ("clock_mhz", "power_w"))
    lines = [
        *facts.items(),
        ("clock while timing", f"{min(clocks):.0f} to {max(clocks):.0f} MHz"),
        ("power while timing", f"{min(powers):.0f} to {max(powers):.0f} W"),
        ("timing runs", str(len({row.run_id for row in rows}))),
        ("cases that the kernels were tried on", str(sum(row.examples for row in rows))),
    ]
    if not facts:
        lines.insert(0, ("machine", "not in the table of results"))
    return _table(("what", "found"), lines, texts=2)


def _table(
    titles: Sequence[str],
    lines: Iterable[Sequence[str]],
    *,
    texts: int,
    marked: tuple[int, Sequence[str]] = (-1, ()),
) -> str:
    """An HTML table whose first `texts` columns are text; one column may have a class a row."""
    column, verdicts = marked
    classes = ["text"] * texts + [""] * (len(titles) - texts)
    head = "".join(_cell("th", title, kind) for title, kind in zip(titles, classes, strict=True))
    body = []
    for number, line in enumerate(lines):
        kinds = [verdicts[number] if at == column else kind for at, kind in enumerate(classes)]
        cells = "".join(_cell("td", *pair) for pair in zip(line, kinds, strict=True))
        body.append(f"<tr>{cells}</tr>\n")
    return (
        f"<div class=wide><table><thead><tr>{head}</tr></thead><tbody>\n{''.join(body)}"
        "</tbody></table></div>"
    )


def _cell(tag: str, text: str, kind: str) -> str:
    shown = re.sub(r"\[.*\]$", "", text)  # a kernel's tunables, which the table of results has
    titled = f' title="{html.escape(text)}"' if shown != text else ""
    marked = f" class={kind}" if kind else ""
    return f"<{tag}{marked}{titled}>{html.escape(shown)}</{tag}>"
