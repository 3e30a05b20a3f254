"""Drawings of graphs and muGraphs: nodes stand apart, lines end at nodes, texts fit."""

import re
from itertools import combinations

import pytest

from superopt.ir import (
    fuse,
    parse_graph,
    parse_mugraph,
    print_graph,
    print_mugraph,
)
from superopt.report.drawing import draw_graph, draw_mugraph
from superopt.report.layers import place
from superopt.report.source import coloured

from .test_report import FOUND, GOAL, measured, program, shown


def boxes(svg):
    """Return the rectangles of the nodes of a drawing."""
    found = re.findall(
        r'class="node.*?<rect x="(.*?)" y="(.*?)" width="(.*?)" height="(.*?)"', svg, re.DOTALL
    )
    return [tuple(map(float, one)) for one in found]


def apart(a, b):
    return a[0] + a[2] <= b[0] or b[0] + b[2] <= a[0] or a[1] + a[3] <= b[1] or b[1] + b[3] <= a[1]


def wide_graph(count):
    """A graph of many steps, some of which skip far ahead."""
    lines = ["graph wide", "axes i=8", "in a: f32[i]", "in b: f32[i]"]
    names = ["a", "b"]
    for at in range(2, count + 2):
        lines.append(f"t{at} = add({names[-1]}, {names[(at * 7) % len(names)]})")
        names.append(f"t{at}")
    return parse_graph("\n".join([*lines, f"out y: f32[i] = {names[-1]}"]))


@pytest.mark.parametrize("count", [1, 5, 80])
def test_nodes_do_not_overlap(count) -> None:
    graph = wide_graph(count)
    for svg in (draw_graph(graph, "before"), draw_mugraph(fuse(graph), "after")):
        found = boxes(svg)
        assert len(found) == count + 3
        assert all(apart(a, b) for a, b in combinations(found, 2))
        width, height = map(float, re.search(r'viewBox="0 0 (\S+) (\S+)"', svg).groups())
        assert all(x >= 0 and y >= 0 and x + w <= width and y + h <= height for x, y, w, h in found)


def test_lines_end_in_arrows_at_nodes_only() -> None:
    svg = draw_mugraph(parse_mugraph(FOUND), "after")
    heads = re.findall(r'd="M(\S+) (\S+)l3.5 6l3.5 -6"', svg)
    tops = {(x, y, x + w) for x, y, w, _ in boxes(svg)}
    tips = [(float(x) + 3.5, float(y) + 6) for x, y in heads]
    assert len(tips) == 2 + 2 + 1 + 1 + 1 + 2 + 1  # one for each operand that is a value, and the output
    assert all(any(left < x < right and abs(y - top) < 0.2 for left, top, right in tops) for x, y in tips)


@pytest.mark.parametrize(("count", "switches"), [(1, 0), (80, 2)])
def test_what_is_large_can_be_seen_as_a_whole(count, switches) -> None:
    result = measured()
    graph = wide_graph(count)
    result["regions"][0]["goal"] = print_graph(graph)
    for one in result["regions"][0]["candidates"]:
        one |= {"mugraph": print_mugraph(fuse(graph)), "configs": []}
    result["program"] = program(print_graph(graph))
    assert shown(result).count('type="checkbox"') == switches


def test_the_bound_is_told_where_every_region_has_one() -> None:
    tags = {"one": [], "none": ["unknown"], "two": []}
    tags["one"] = ["equal: chance of error below 2^-9 (0.1 s)"]
    tags["two"] = [*tags["one"], "equal: chance of error below 2^-7 (0.1 s)"]
    heads = {name: shown({**measured(), "verdicts": texts}).split("<h2>")[0] for name, texts in tags.items()}
    assert "equal, chance of error below 2^-9<" in heads["one"]
    assert "equal, region by region" in heads["two"]
    assert "equal" not in heads["none"].split("<body>")[1]


def test_texts_fit_into_their_boxes() -> None:
    svg = draw_graph(parse_graph(GOAL), "before")
    pattern = r'class="node.*?<rect.*?width="(.*?)".*?</rect>(.*?)</g>'
    found = re.findall(pattern, svg, re.DOTALL)
    assert len(found) == 11
    for width, content in found:
        for text in re.findall(r"<text.*?>(.*?)</text>", content):
            assert len(text) * 7.3 <= float(width)


def test_layers_go_down_and_sources_stand_near() -> None:
    sizes = dict.fromkeys("abdc", (20.0, 10.0))
    placed = place(sizes, [("a", "b", 0), ("b", "c", 1), ("d", "c", 2), ("a", "c", 0)])
    rows = {key: y for key, (_, y) in placed.corners.items()}
    assert rows["a"] < rows["b"] == rows["d"] < rows["c"]
    assert len(placed.bends["a", "c", 0]) == 1


def test_edges_do_not_cross_where_they_need_not() -> None:
    sizes = dict.fromkeys("abcxyz", (20.0, 10.0))
    placed = place(sizes, [("a", "z", 0), ("b", "y", 1), ("c", "x", 2)])
    order = sorted("abc", key=lambda key: placed.corners[key])
    below = sorted("xyz", key=lambda key: placed.corners[key])
    assert [{"a": "z", "b": "y", "c": "x"}[key] for key in order] == below


def test_colours() -> None:
    text = coloured('x = 1 // 2  # a "comment"\n')
    assert '<span class="n">1</span> // <span class="n">2</span>' in text
    assert '<span class="c"># a &quot;comment&quot;</span>' in text
    text = coloured("#include <a>\nint x = 2;  // <b>\n")
    assert '<span class="k">#include &lt;a&gt;</span>' in text
    assert '<span class="c">// &lt;b&gt;</span>' in text
