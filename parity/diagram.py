"""The registry as a picture: which layer feeds which, top to bottom, one column for each group of layers.

A layer stands directly above the first layer that reads it. The transforms are one box. An arrow is left out where a
longer way between the same two layers is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape

from parity.layers.spec import REGISTRY, upstream

COLUMN, ROW, WIDTH, HEIGHT, TOP = 120, 52, 112, 26, 34  # in pixels; TOP is the room for the groups' names
COLLAPSED = "transforms"
COLOURS = ("#4e79a7", "#b07aa1", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#9c755f", "#d37295", "#8a8a00", "#5f5f5f")
STYLE = "text{font:10.5px sans-serif;fill:#222} .group{font-weight:bold} path{fill:none;stroke-width:1.3;opacity:.65}"

Edges = dict[str, set[str]]  # layer -> the layers that feed it
Places = dict[str, tuple[int, int]]  # layer -> column and row


def group(layer: str) -> str:
    """The part of a layer's name before the slash."""
    return layer.partition("/")[0]


def box(layer: str) -> str:
    """The box in which a layer is drawn: its own, or that of all transforms."""
    return COLLAPSED if group(layer) == COLLAPSED else layer


def edges(layers: Iterable[str]) -> Edges:
    """Boxes of these layers and of all that feeds them, in the registry's order, with the boxes that feed each."""
    wanted = set(layers).union(*(upstream(layer) for layer in layers))
    found: Edges = {}
    for layer in (name for name in REGISTRY if name in wanted):
        found.setdefault(box(layer), set()).update(box(name) for name in REGISTRY[layer].upstream)
    return {name: feeding - {name} for name, feeding in found.items()}


def reduced(graph: Edges) -> Edges:
    """The same relation with the fewest arrows (its transitive reduction)."""
    above: Edges = {}
    for name, feeding in graph.items():  # in data-flow order
        above[name] = feeding.union(*(above[other] for other in feeding))
    return {
        name: {one for one in feeding if not any(one in above[other] for other in feeding)}
        for name, feeding in graph.items()
    }


def places(graph: Edges) -> Places:
    """Column and row of each box: a column for each group, and a row above all that read the box."""
    columns = {name: i for i, name in enumerate(dict.fromkeys(group(layer) for layer in graph))}
    found: Places = {}
    for name in reversed(graph):
        row = min((found[reader][1] for reader, feeding in graph.items() if name in feeding), default=0) - 1
        while (columns[group(name)], row) in found.values():
            row -= 1
        found[name] = (columns[group(name)], row)
    first = min(row for _, row in found.values())
    return {name: (column, row - first) for name, (column, row) in found.items()}


def _curve(start: tuple[int, int], end: tuple[int, int], occupied: Iterable[tuple[int, int]]) -> str:
    """A way from the lower edge of one box to the upper edge of another; past the boxes between them in a column."""
    (c0, r0), (c1, r1) = start, end
    x0, x1 = (c * COLUMN + COLUMN // 2 for c in (c0, c1))
    y0, y1 = TOP + r0 * ROW + HEIGHT, TOP + r1 * ROW - 5
    if any(c == c0 == c1 and r0 < r < r1 for c, r in occupied):
        side = x0 + WIDTH // 2 + 14
        return f"M{x0 + 30} {y0} C{side} {y0 + 20} {side} {y1 - 20} {x1 + 30} {y1}"
    bend = max(20, (y1 - y0) // 2)
    return f"M{x0} {y0} C{x0} {y0 + bend} {x1} {y1 - bend} {x1} {y1}"


def _arrows(graph: Edges, at: Places, colours: Mapping[str, str]) -> list[str]:
    lines = []
    for name, feeding in graph.items():
        for other in sorted(feeding):
            way, colour = _curve(at[other], at[name], at.values()), colours[group(other)]
            lines.append(f'<path d="{way}" stroke="{colour}" marker-end="url(#tip)"/>')
    return lines


def _boxes(at: Places, colours: Mapping[str, str]) -> list[str]:
    lines = []
    for name, (column, row) in at.items():
        x, y = column * COLUMN + (COLUMN - WIDTH) // 2, TOP + row * ROW
        size = f'width="{WIDTH}" height="{HEIGHT}" rx="5"'
        count = sum(group(layer) == name for layer in REGISTRY)
        label = f"{count} transforms" if name == COLLAPSED else name.partition("/")[2]
        lines.append(f'<rect x="{x}" y="{y}" {size} fill="#fff" stroke="{colours[group(name)]}" stroke-width="1.6"/>')
        text = f'<text x="{x + WIDTH // 2}" y="{y + 17}" text-anchor="middle">{escape(label)}</text>'
        lines.append(f"<g><title>{escape(REGISTRY[name].summary)}</title>{text}</g>" if name in REGISTRY else text)
    return lines


def svg(layers: Iterable[str]) -> str:
    """The picture of these layers and of all that feeds them."""
    graph = reduced(edges(list(layers)))
    at = places(graph)
    groups = dict.fromkeys(group(name) for name in graph)
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(groups)}
    width, height = COLUMN * len(groups), TOP + ROW * (1 + max(row for _, row in at.values())) - HEIGHT + 10
    heads = [
        f'<text class="group" x="{i * COLUMN + COLUMN // 2}" y="16" text-anchor="middle">{escape(name)}</text>'
        for i, name in enumerate(groups)
    ]
    tip = '<marker id="tip" markerWidth="6" markerHeight="6" refX="3" refY="3" orient="auto">'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f'<style>{STYLE}</style><defs>{tip}<path d="M0 0L6 3L0 6z" style="fill:#666;stroke:none"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        *heads,
        *_arrows(graph, at, colours),
        *_boxes(at, colours),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"
