"""The report of a filter: counts, a histogram of each score, example texts near each bound.

    manifest, examples, texts of copies -> report_page -> one HTML file, without scripts or
                                                          references to others

Texts, labels and paths come from the input: everything is escaped.  Must not know how rows are
scored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from html import escape
from typing import Any

from snailps.filtering.scores import Near

LABELS_SHOWN = 30
WORDS_COMPARED = 1500
"""Words of a text that are compared with its cover's: more would take seconds a pair."""
WORDS_AROUND = 12
"""Words of what is alike that are shown beside what differs."""
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem;
  color: #222; background: #fff }
table { border-collapse: collapse; margin: .5rem 0 1.5rem } td, th { padding: .2rem .7rem;
  text-align: left; border-bottom: 1px solid #ddd; vertical-align: top } td.n { text-align: right;
  font-variant-numeric: tabular-nums; white-space: nowrap } code { background: #f3f3f3 }
svg { display: block } .bar { fill: #4878a8 } .bound { stroke: #c03; stroke-width: 1.5 }
text { font-size: 11px; fill: #555 } td.t { max-width: 40rem; overflow-wrap: anywhere }
table.pairs td { width: 50% } mark { background: #fd8; color: #222 }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #181818 }
  td, th { border-color: #444 } code { background: #2a2a2a } text { fill: #aaa } }
"""


def report_page(
    manifest: Mapping[str, Any],
    near: Mapping[str, tuple[Sequence[Near], Sequence[Near]]],
    texts: Mapping[str, str],
) -> str:
    """The page.  `near`: for each bound, example texts that it kept and that it refused; `texts`:
    by file and row, of the pairs of copies that are shown."""
    return "\n".join(_page(manifest, near, texts))


def _page(
    manifest: Mapping[str, Any],
    near: Mapping[str, tuple[Sequence[Near], Sequence[Near]]],
    texts: Mapping[str, str],
) -> Iterator[str]:
    rows, kept = manifest["rows"], manifest["kept"]
    yield "<!doctype html><html lang=en><meta charset=utf-8><title>snailps filter</title>"
    yield f"<style>{_STYLE}</style><h1>{kept:,} of {rows:,} texts kept{_share(kept, rows)}</h1>"
    yield f"<p><code>{escape(manifest['keep'])}</code></p>"
    yield "<table><tr><th>refused by<th>texts<th>of all"
    if manifest["without_text"]:
        yield _count("no text", manifest["without_text"], rows)
    for refused in manifest["refused"]:
        yield _count(f"<code>{escape(refused['clause'])}</code>", refused["texts"], rows)
    yield "</table><p>Clauses on columns alone are evaluated first, then the others as written, "
    yield "those on copies last. A text is counted at the first clause that refuses it; the "
    yield "clauses after it, and their models, do not see it.</p>"
    for name, score in manifest["scores"].items():
        yield f"<h2>{escape(name)}</h2>"
        if "bins" in score:
            bounds = [
                float(text.rsplit(" ", 1)[1]) for text in near if text.rsplit(" ", 1)[0] == name
            ]
            yield _histogram(score["bins"], bounds)
        else:
            yield _labels(score["labels"])
    for text, sides in near.items():
        name, bound = text.rsplit(" ", 1)
        for side, words in zip(sides, ("kept", "refused"), strict=True):
            if side:
                yield f"<h2>{words} by <code>{escape(name)}</code> near {bound}</h2>"
                yield _examples(side)
    if copies := manifest.get("copies"):
        yield from _copies(copies, texts)
    if benchmarks := manifest.get("benchmarks"):
        yield f"<h2>benchmarks</h2><p>{benchmarks['met']:,} of {benchmarks['lines']:,} lines were "
        yield "met</p><table><tr><th>texts<th>line<th>file, row"
        for hit in benchmarks["hits"][:LABELS_SHOWN]:
            place = f"{escape(hit['file'])}, {hit['row']:,}"
            yield f"<tr><td class=n>{hit['texts']:,}<td class=t>{escape(hit['text'])}<td>{place}"
        yield "</table>"
    yield "<h2>models</h2><table>"
    for name, model in manifest["models"].items():
        yield f"<tr><td>{escape(name)}<td>{escape(model['path'])}"
        yield f"<td><code>{model['sha256'][:16]}</code>"
    yield "</table></html>"


def _copies(copies: Mapping[str, Any], texts: Mapping[str, str]) -> Iterator[str]:
    """Covers of the most texts; pairs of what goes and what stays, with what differs."""
    yield f"<h2>copies</h2><p>{copies['removed']:,} of {copies['compared']:,} compared texts have "
    yield "a kept text that covers them"
    if by_index := copies.get("removed_by_index"):
        yield f"; of {by_index:,} it is in the index"
    yield "</p>"
    if copies["covers"]:
        yield "<table><tr><th>covers<th>file, row"
        for cover in copies["covers"]:
            yield f"<tr><td class=n>{cover['texts']:,}<td>{_place(cover)}"
        yield "</table>"
    for pair in copies["pairs"]:
        removed, kept = pair["removed"], pair["kept"]
        names = (f"{side['file']}:{side['row']}" for side in (removed, kept))
        goes, stays = (texts.get(name, "") for name in names)
        sides = side_by_side(goes, stays) if stays else (escape(goes), "<i>in the index</i>")
        yield f"<p>contained {pair['contained']:.4g}, near {pair['near']:.4g}</p>"
        yield "<table class=pairs><tr>"
        for words, side in (("goes", removed), ("stays", kept)):
            yield f"<th>{words}: {_place(side)}"
        yield "<tr>" + "".join(f"<td class=t>{side}" for side in sides) + "</table>"


def _place(place: Mapping[str, Any]) -> str:
    return f"{escape(place['file'])}, row {place['row']:,}"


def side_by_side(removed: str, kept: str) -> tuple[str, str]:
    """Two texts as HTML: words that differ are marked, long parts that are alike are cut.

    `SequenceMatcher` passes over words that are frequent: else a text of few different words, often
    repeated, would take hours.
    """
    words = removed.split()[:WORDS_COMPARED], kept.split()[:WORDS_COMPARED]
    bare = [[word.lower().strip(".,;:!?()\"'") for word in side] for side in words]
    sides: tuple[list[str], list[str]] = [], []
    for kind, *spans in SequenceMatcher(None, bare[0], bare[1]).get_opcodes():
        for side, shown, (begin, end) in zip(words, sides, (spans[:2], spans[2:]), strict=True):
            part = side[begin:end]
            if kind != "equal" and part:
                shown.append(f"<mark>{escape(' '.join(part))}</mark>")
            elif len(part) > 2 * WORDS_AROUND + 1:
                ends = part[:WORDS_AROUND], part[-WORDS_AROUND:]
                shown.append(" &hellip; ".join(escape(" ".join(words)) for words in ends))
            elif part:
                shown.append(escape(" ".join(part)))
    return " ".join(sides[0]), " ".join(sides[1])


def _share(part: int, whole: int) -> str:
    return f" ({part / whole:.1%})" if whole else ""


def _count(words: str, count: int, rows: int) -> str:
    share = f"{count / rows:.2%}" if rows else ""
    return f"<tr><td>{words}<td class=n>{count:,}<td class=n>{share}"


def _histogram(bins: Sequence[int], bounds: Sequence[float]) -> str:
    """Bars on a linear scale, a pixel high at least if not empty; red lines at the bounds."""
    width, height, most = 720, 160, max(*bins, 1)
    step = width / len(bins)
    heights = [max(count / most * height, float(count > 0)) for count in bins]
    bars = "".join(
        f"<rect class=bar x={bar * step:.1f} y={height - tall:.1f} width={step - 1:.1f} "
        f"height={tall:.1f}><title>{bar / len(bins):g} to {(bar + 1) / len(bins):g}: {count:,}"
        f"</title></rect>"
        for bar, (count, tall) in enumerate(zip(bins, heights, strict=True))
    )
    lines = "".join(
        f"<line class=bound x1={bound * width:.1f} x2={bound * width:.1f} y1=0 y2={height} />"
        for bound in (min(max(bound, 0.0), 1.0) for bound in bounds)
    )
    marks = "".join(
        f"<text x={share * width:.0f} y={height + 14} text-anchor={anchor}>{share:g}</text>"
        for share, anchor in (
            (0.0, "start"),
            (0.25, "middle"),
            (0.5, "middle"),
            (0.75, "middle"),
            (1.0, "end"),
        )
    )
    return (
        f"<svg viewBox='0 0 {width} {height + 20}' width={width} role=img>"
        f"{bars}{lines}{marks}</svg>"
        f"<p>{sum(bins):,} texts; the highest bar is {max(bins):,}</p>"
    )


def _labels(labels: Mapping[str, int]) -> str:
    total = sum(labels.values())
    order = sorted(labels.items(), key=lambda item: (-item[1], item[0]))
    rows = [_count(escape(label), count, total) for label, count in order[:LABELS_SHOWN]]
    others = total - sum(count for _, count in order[:LABELS_SHOWN])
    if others:
        rows.append(_count(f"{len(order) - LABELS_SHOWN:,} others", others, total))
    return "<table><tr><th>best label<th>texts<th>" + "".join(rows) + "</table>"


def _examples(side: Sequence[Near]) -> str:
    rows = []
    for near in side:
        scores = ", ".join(
            f"{escape(name)} {escape(value) if isinstance(value, str) else format(value, '.4g')}"
            for name, value in near.scores.items()
        )
        place = f"{escape(near.task)}, row {near.row:,}"
        rows.append(f"<tr><td class=t>{escape(near.text)}<td>{scores}<td>{place}")
    return "<table>" + "".join(rows) + "</table>"
