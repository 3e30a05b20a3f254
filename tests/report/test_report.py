"""The page of a result: complete, safe, the same each time, and nothing in it overlaps."""

import copy
import json
import re
import subprocess
import sys
from dataclasses import fields, is_dataclass, replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from superopt.candidates import RegionCandidates
from superopt.errors import InputError
from superopt.fate import Fate
from superopt.ir import (
    Graph,
    MuGraph,
    Opaque,
    Program,
    Region,
    parse_graph,
    parse_mugraph,
    print_program,
)
from superopt.report import report_html
from superopt.report.charts import _Scale
from superopt.result import result_from_json
from superopt.targets.cuda import CudaTarget

GOAL = """graph rmsnorm_linear
axes m=16 k=4096 n=6144
in x: f16[m, k]
in g: f16[k]
in w: f16[k, n]
t3 = square(x)
t4 = sum[k](t3)
t5 = size[k]()
t6 = div(t4, t5)
t7 = rsqrt(t6)
t8 = mul(x, t7)
t9 = mul(t8, g)
t10 = contract[k](t9, w)
out out: f16[m, n] = t10
"""

FOUND = """graph rmsnorm_linear
axes m=16 k=4096 n=6144
in x: f16[m, k]
in g: f16[k]
in w: f16[k, n]
kernel grid[m, n]
  t6 = size[k]()
  loop[k]
    t3 = mul(x, g)
    t4 += contract[k](t3, w)
    t5 += contract[k](x, x)
  t7 = div(t5, t6)
  t8 = sqrt(t7)
  t9 = div(t4, t8)
out out: f16[m, n] = t9
"""

SMALL_GOAL = """graph small
axes k=8
in x: f32[k]
t1 = neg(x)
out y: f32[k] = t1
"""

SMALL = SMALL_GOAL.replace("t1 =", "kernel grid[k]\n  t1 =")

KERNEL = {
    "name": "rmsnorm_linear_0",
    "bytes": 50_000_000,
    "flops": 10**9,
    "predicted_us": 11.5,
    "shared_bytes": 49152,
    "registers": 128,
    "spill_bytes": 0,
}


def candidate(id, kind, reason="", **more):
    return {
        "id": id,
        "schedule": f"graph {id}",
        "variant": "",
        "fate": {"stage": "check", "kind": kind, "reason": reason},
        "graph": GOAL,
        "mugraph": FOUND,
        "configs": [{"tiles": [["m", 16], ["k", 64], ["n", 64]], "num_warps": 4}],
        "sources": ["import triton\n\ndef kernel(x):  # a comment\n    return x // 2\n"],
        "kernels": [KERNEL],
        "predicted_us": 11.5,
        **more,
    }


def measured():
    return {
        "superopt": "result",
        "version": 3,
        "name": "rmsnorm-linear",
        "target": "cuda:90",
        "device": "NVIDIA H200",
        "versions": {"superopt": "0.1.0", "torch": "2.13.0"},
        "seed": 0,
        "source": None,
        "inputs": [],
        "program": program(GOAL),
        "regions": [
            {
                "goal": GOAL,
                "candidates": [
                    candidate("1", "chosen", median_us=12.0, low_us=11.8, high_us=12.9),
                    candidate("2", "refused", "floats: NaN", median_us=9.0, low_us=8.8, high_us=9.9),
                    candidate("3", "no time", "not measured", median_us=None),
                    candidate("4", "slower", median_us=13.0),
                ],
                "dropped": [
                    {
                        "id": "5.1",
                        "name": "graph 5 + split k",
                        "fate": {
                            "stage": "schedule",
                            "kind": "slower",
                            "reason": "bound 31.2 us is above 2x the best",
                        },
                    }
                ],
                "floor_us": 10.9,
            }
        ],
        "winner": "superopt",
        "eager": {"operators": 7, "bytes": 51_000_000, "reads": {"x": 2, "g": 1, "w": 1}},
        "measurements": {
            name: {"median_us": us, "low_us": us, "high_us": us, "rounds": 9}
            for name, us in (("eager", 31.0), ("torch.compile", 20.8), ("superopt", 12.0))
        },
        "floats": {
            "dtype": "float16",
            "factor": 2.0,
            "distributions": [
                {"name": "normal", "eager_error": 1e-3, "candidate_error": 9e-4, "ratio": 0.4, "skipped": ""}
            ],
        },
        "verdicts": ["equal: 16 random trials over finite fields, chance of error below 2^-171"],
        "phases_ms": {"search": 150.0, "compile": 900.0},
    }


def program(goal):
    """Return a program around a goal, whose first input another operator makes, as text."""
    graph = parse_graph(goal)
    first, *others = graph.inputs
    made = Opaque("look_up", "aten.embedding.default", "reads rows by number", ("table",), (first.name,))
    table = replace(first, name="table")
    outputs = tuple(one.port.name for one in graph.outputs)
    return print_program(Program(graph.name, (table, *others), (made, Region(graph)), outputs))


def shown(data):
    """Return the page of a result that is read from plain data."""
    return report_html(result_from_json(data))


def plan():
    result = measured()
    result.update(winner=None, device=None, measurements={}, floats=None)
    for one in result["regions"][0]["candidates"]:
        one.update(median_us=None, low_us=None, high_us=None)
    return result


class Page(HTMLParser):
    """What a browser would make of a page: its tags, in balance, its texts, and the tags' attributes."""

    VOID = ("meta", "link", "img", "br", "input")

    def __init__(self, text):
        super().__init__()
        self.stack, self.tags, self.texts = [], [], []
        self.feed(text)
        assert not self.stack

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        if not self.stack or self.stack[-1] not in ("style", "script"):
            self.texts.append(data)


@pytest.mark.parametrize(
    "text",
    [
        "1.73 times as fast",
        "NVIDIA H200",
        "torch.compile 20.8 µs",
        "rejected: floats: NaN",
        "rejected: not measured",
        "slower",
        "bound 31.2 us is above 2x the best",
        "chance of error below 2^-171",
        "checked in float16",
        "aten.embedding.default",
        "reads rows by number",
        "kernel 0 · grid[m, n] · 11.5 µs predicted",
        "loop k",
        "t4 += contract[k](t3, w)",
        "m=16, k=64, n=64, num_warps 4",
        "2.13.0",
        "compile",
    ],
)
def test_a_measured_result_shows(text) -> None:
    assert text in "".join(Page(shown(measured())).texts)


def test_it_says_why_it_is_faster_and_why_not_faster_still() -> None:
    text = "".join(Page(shown(measured())).texts)
    assert text.index("steps became 1 kernel") < text.index("The program before")
    assert "PyTorch runs" not in text  # for a part of the program, how much is not known
    goal = parse_graph(GOAL)
    alone = Program(goal.name, goal.inputs, (Region(goal),), ("out",))
    text = "".join(Page(shown({**measured(), "program": print_program(alone)})).texts)
    assert text.index("One pass over x instead of two; 7 operators became") < text.index("The program before")
    assert "PyTorch runs 7 operators for it and moves 51 MB, copies included." in text
    assert "Why not faster" in text
    assert "operations of arithmetic" in text
    lost = measured()
    lost.update(winner="eager")
    lost["regions"][0]["candidates"][0]["fate"]["kind"] = "slower"
    text = "".join(Page(shown(lost)).texts)
    assert "operators became" not in text.partition("The program before")[0]
    assert "The best of ours takes" in text


def test_a_plan_says_that_it_is_one() -> None:
    text = "".join(Page(shown(plan())).texts)
    assert "A plan: 11.5 µs predicted, not measured" in text
    assert "Predicted times" in text
    assert "measured on" not in text
    assert "1.73" not in text


@pytest.mark.parametrize(
    ("stood_in", "against"),
    [(True, "PyTorch's stand-in for the original"), (False, "torch.compile")],
)
def test_a_speedup_says_against_what(stood_in: bool, against: str) -> None:
    text = "".join(Page(shown(measured() | {"stood_in": stood_in})).texts)
    assert f"1.73 times as fast as {against}" in text


@pytest.mark.parametrize("winner", ["eager", "torch.compile"])
def test_pytorch_wins(winner) -> None:
    result = measured()
    result.update(winner=winner)
    result["regions"][0]["candidates"][0]["fate"]["kind"] = "slower"
    text = "".join(Page(shown(result)).texts)
    assert f"{winner} stays the fastest" in text
    assert "no candidate was chosen" in text


def test_candidates_are_folded_by_mugraph() -> None:
    result = measured()
    tuned = [candidate(f"1.{at}", "slower", variant=f"tuned {at}", median_us=14.0 + at) for at in range(3)]
    other = candidate("9", "slower", mugraph=FOUND.replace("kernel grid[m, n]", "kernel grid[n, m]"))
    result["regions"][0]["candidates"] += [*tuned, other | {"median_us": 15.0}]
    best, every = re.findall(r"<tbody>(.*?)</tbody>", shown(result), re.DOTALL)[:2]
    assert [best.count("<tr"), every.count("<tr")] == [2, 8]
    assert "graph 1" in best
    assert 'data-key="7">7</td></tr>' in best  # the configurations of the first
    assert "all 8 candidates" in shown(result)
    one = measured()
    one["regions"][0]["candidates"] = one["regions"][0]["candidates"][:1]
    assert "all 1 candidates" not in shown(one)


def test_the_race_fits_any_width() -> None:
    """Everything in it stands in shares of the width, the last race above the candidates."""
    page = shown(measured())
    chart = page[page.index('aria-label="the race"') :].partition("</h2>")[0]
    assert "px" not in chart.partition("<h2>")[0]
    shares = [float(one) for one in re.findall(r"left:([\d.]+)%", chart)]
    assert shares
    assert all(0 <= one <= 100 for one in shares)
    names = re.findall(r'<span class="name">(.*?)</span>', chart)
    assert names[:4] == ["superopt", "torch.compile", "eager", "graph 1"]
    points = dict(zip(names, re.findall(r'class="point" style="left:([\d.]+)%', chart), strict=False))
    assert float(points["superopt"]) < float(points["torch.compile"]) < float(points["eager"])


@pytest.mark.parametrize("spread", [1.01, 1.5, 7.9, 8.1, 60.0, 900.0, 3e4, 1e9])
@pytest.mark.parametrize("low", [0.3, 7.0, 41_000.0])
def test_the_labels_of_an_axis_stand_apart(low: float, spread: float) -> None:
    scale = _Scale([low, low * spread])
    places = [scale.at(us) for us in scale.ticks()]
    assert len(places) >= 2 or scale.is_log
    assert places
    assert all(0 <= place <= 1 for place in places)
    assert all(b - a >= 0.15 for a, b in pairwise(places))


def test_the_page_needs_nothing_else() -> None:
    page = Page(shown(measured()))
    for tag, attributes in page.tags:
        assert tag not in ("link", "img", "iframe", "object")
        assert not {"src", "href", "srcset"} & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]
    assert "url(" not in shown(measured())
    assert "prefers-color-scheme: dark" in shown(measured())


@pytest.mark.slow
def test_the_same_result_gives_the_same_page() -> None:
    code = (
        "import json, sys\n"
        "from superopt.report import report_html\n"
        "from superopt.result import result_from_json\n"
        "assert 'torch' not in sys.modules\n"
        "sys.stdout.write(report_html(result_from_json(json.load(sys.stdin))))\n"
    )
    pages = {
        subprocess.run(
            [sys.executable, "-c", code],
            input=json.dumps(measured()),
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8"},
        ).stdout
        for seed in ("1", "2")
    }
    assert pages == {shown(measured())}


EVIL = "</style></script><script>alert(1)</script>\"'><img src=x onerror=alert(1)>&\x00"


def poisoned(value):
    """Put a text that wants to be markup into every text of a result, keys included."""
    if isinstance(value, Graph | MuGraph | Program | CudaTarget | Fate):
        return replace(value, reason=EVIL) if isinstance(value, Fate) else value
    if is_dataclass(value):
        return replace(value, **{one.name: poisoned(getattr(value, one.name)) for one in fields(value)})
    if isinstance(value, dict):
        return {EVIL + str(key): poisoned(inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        return tuple(map(poisoned, value))
    return EVIL if isinstance(value, str) else value


def test_no_text_becomes_markup() -> None:
    whole = result_from_json(measured())
    assert whole.regions[0].candidates[0].configs
    evil = {"graph rmsnorm_linear": "graph <script>alert(1)</script>", "m=16": "<b>=16", "[m": "[<b>"}
    goal, found = GOAL, FOUND
    for old, new in evil.items():
        goal, found = goal.replace(old, new), found.replace(old, new)
    result = poisoned(replace(whole, regions=()))
    candidates = tuple(
        poisoned(replace(one, configs=(), graph=parse_graph(goal), mugraph=parse_mugraph(found)))
        for one in whole.regions[0].candidates
    )
    region = RegionCandidates(parse_graph(goal), candidates, poisoned(whole.regions[0].dropped))
    text = report_html(replace(result, regions=(region,)))
    page = Page(text)
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert "img" not in [tag for tag, _ in page.tags]
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert "alert(1)" in "".join(page.texts)
    assert "\x00" not in text


def removals(value, path=()):
    """Yield every place of a result."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from removals(inner, (*path, key))


@pytest.mark.parametrize("change", [None, "text", -1, [], {}, [None], float("nan"), "delete"])
def test_whatever_is_missing_or_wrong_is_refused_or_the_rest_shows(change) -> None:
    whole = measured()
    [region] = whole["regions"]
    region["candidates"] = [region["candidates"][0] | {"mugraph": SMALL, "graph": SMALL_GOAL, "configs": []}]
    region["goal"], whole["program"] = SMALL_GOAL, program(SMALL_GOAL)
    assert Page(shown(whole)).texts
    for *path, last in removals(whole):
        result = copy.deepcopy(whole)
        at = result
        for key in path:
            at = at[key]
        if change == "delete":
            del at[last]
        else:
            at[last] = change
        try:
            read = result_from_json(result)
        except InputError:
            continue
        Page(report_html(read))


# -- drawings


@pytest.mark.parametrize(
    "eager",
    [
        {"operators": -1, "bytes": 1, "reads": {}},
        {"operators": 1, "bytes": "many", "reads": {}},
        {"operators": 1, "bytes": 1, "reads": {"x": -1}},
        {"operators": 1, "bytes": 1, "reads": {"x": 0.5}},
        {"operators": 1, "bytes": 1, "reads": ["x"]},
        {"operators": 1, "bytes": 1, "reads": {}, "more": 1},
        {"operators": 1},
        7,
    ],
)
def test_what_pytorch_does_is_read_with_care(eager) -> None:
    with pytest.raises(InputError, match="damaged"):
        result_from_json({**measured(), "eager": eager})
    assert result_from_json({**measured(), "eager": None}).eager is None
