"""Look: the page's style, light and dark, and the little script that sorts, marks edges and copies."""

from superopt.report.svg import escape

__all__ = ["STYLE", "document"]

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f7f8fa; --card: #ffffff; --ink: #1c2430; --dim: #5c6878; --line: #d9dee6; --grid: #e8ecf1;
  --accent: #0f766e; --accent-soft: #d5efec; --second: #b45309; --second-soft: #fdebd0;
  --third: #4f46e5; --third-soft: #e3e3fc; --bad: #b42318; --edge: #a4afbd; --code: #f2f4f7;
  --box: #f4f7fb; --inner: #e9eef6; --k: #4f46e5; --s: #15803d; --c: #6b7787; --n: #b45309; --f: #0f766e;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #12161c; --card: #1a2028; --ink: #e4e9f0; --dim: #96a3b4; --line: #303a47; --grid: #262f3a;
    --accent: #4fc7ba; --accent-soft: #15403d; --second: #f0a653; --second-soft: #45300f;
    --third: #a5a8ff; --third-soft: #2b2d5c; --bad: #ff8a80; --edge: #566373; --code: #151a21;
    --box: #1f2731; --inner: #27313e; --k: #a5a8ff; --s: #86d39b; --c: #8593a5; --n: #f0a653; --f: #4fc7ba;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
}
main { max-width: 1180px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 1.1rem; margin: 0; color: var(--dim); font-weight: 600; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 36px 0 10px; overflow-wrap: anywhere; }
h3 { font-size: 1rem; margin: 22px 0 8px; overflow-wrap: anywhere; }
p { margin: 6px 0; overflow-wrap: anywhere; }
.headline {
  font-size: 1.9rem; font-weight: 700; line-height: 1.25; margin: 6px 0 8px; overflow-wrap: anywhere;
}
.why { font-size: 1.1rem; max-width: 62em; }
.headline b { color: var(--accent); }
.tags { display: flex; flex-wrap: wrap; gap: 8px; margin-top: 12px; }
.tags span {
  background: var(--card); border: 1px solid var(--line); border-radius: 999px; padding: 2px 12px;
  font-size: .87rem; overflow-wrap: anywhere;
}
.card {
  background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 14px; overflow: auto;
}
.graphs { max-height: max(78vh, 900px); }
.dim, .note { color: var(--dim); }
.note { font-size: .9rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; padding: 6px 10px; border-bottom: 1px solid var(--line); vertical-align: top; }
td { overflow-wrap: break-word; min-width: 5em; }
tr:last-child td { border-bottom: 0; }
th { color: var(--dim); font-weight: 600; white-space: nowrap; }
th.sorts { cursor: pointer; user-select: none; }
th.sorts:hover { color: var(--ink); }
th[aria-sort="ascending"]::after { content: " ▲"; }
th[aria-sort="descending"]::after { content: " ▼"; }
td:first-child { min-width: 9em; }
td:last-child:not(.number) { min-width: 15em; }
ul { margin: 4px 0; padding-left: 1.3em; }
td.number, th.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
tr.chosen td { background: var(--accent-soft); }
tr.rejected td { color: var(--dim); }
pre, code { font: 12.5px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
pre {
  background: var(--code); border-radius: 8px; padding: 12px; margin: 8px 0; overflow: auto;
  max-height: 70vh;
}
pre.wraps { white-space: pre-wrap; overflow-wrap: anywhere; }
pre .k { color: var(--k); } pre .s { color: var(--s); } pre .c { color: var(--c); font-style: italic; }
pre .n { color: var(--n); } pre .f { color: var(--f); }
details > summary { cursor: pointer; padding: 6px 0; font-weight: 600; overflow-wrap: anywhere; }
svg { display: block; }
svg text {
  font: 12px ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: var(--ink);
}
svg text.dim { fill: var(--dim); }
svg text.title { font-weight: 700; }
svg.graph text.title { paint-order: stroke; stroke: var(--box); stroke-width: 5px; stroke-linejoin: round; }
svg.graph text.in-loop { stroke: var(--inner); }
svg.graph { margin: 0 auto; height: auto; max-width: max(100%, calc(var(--natural) * .75)); }
.whole {
  display: block; text-align: right; margin: -4px 0 4px; font-size: .85rem; color: var(--dim);
  cursor: pointer;
}
.whole input { accent-color: var(--accent); vertical-align: -2px; margin-right: 6px; }
.whole:has(:checked) + .graphs { max-height: none; }
.whole:has(:checked) + .graphs svg { max-width: 100%; height: auto; }
.source { position: relative; }
.source button {
  position: absolute; top: 8px; right: 8px; font: inherit; font-size: .8rem; cursor: pointer;
  color: var(--dim); background: var(--card); border: 1px solid var(--line); border-radius: 6px;
  padding: 1px 10px;
}
.box { stroke: var(--line); stroke-width: 1.5; fill: var(--box); }
.box.call { stroke: var(--third); stroke-dasharray: 6 4; }
.box.kernel { stroke: var(--accent); }
.box.loop { fill: var(--inner); stroke: var(--edge); }
.edge { fill: none; stroke: var(--edge); stroke-width: 1.4; }
.edge.hot { stroke: var(--second); stroke-width: 2.6; }
.node rect { fill: var(--card); stroke: var(--edge); stroke-width: 1.2; }
.node.input rect { fill: var(--third-soft); stroke: var(--third); }
.node.output rect { fill: var(--accent-soft); stroke: var(--accent); }
.node.reduction rect { fill: var(--second-soft); stroke: var(--second); }
.node.layout rect { stroke-dasharray: 4 3; }
.node:hover rect { stroke-width: 2.4; }
.legend {
  display: flex; flex-wrap: wrap; gap: 4px 18px; font-size: .85rem; color: var(--dim); margin: 4px 0 8px;
}
.legend i {
  display: inline-block; width: 13px; height: 13px; border-radius: 4px; border: 1.5px solid var(--edge);
  vertical-align: -2px; margin-right: 6px; background: var(--card);
}
.legend .input { background: var(--third-soft); border-color: var(--third); }
.legend .output { background: var(--accent-soft); border-color: var(--accent); }
.legend .reduction { background: var(--second-soft); border-color: var(--second); }
.legend .kernel { background: var(--box); border-color: var(--accent); }
.legend .loop { background: var(--inner); }
.chart { font-size: .87rem; }
.chart .title { font-weight: 700; margin: 14px 0 4px; overflow-wrap: anywhere; }
.chart .title:first-child { margin-top: 0; }
.row {
  display: grid; grid-template-columns: 20em 1fr 5.5em; gap: 0 14px; align-items: center; padding: 2px 0;
}
.row .name { text-align: right; overflow-wrap: anywhere; line-height: 1.25; }
.row .value { color: var(--dim); font-variant-numeric: tabular-nums; white-space: nowrap; }
.row.chosen .name, .row.chosen .value { color: var(--accent); font-weight: 600; }
.track { position: relative; height: 16px; margin: 0 7px; }
.track i { position: absolute; }
.row:not(.axis):has(.point) .track { border-bottom: 1px solid var(--grid); }
.bar { top: 2px; height: 12px; border-radius: 3px; }
.bar0 { background: var(--second); } .bar1 { background: var(--accent); }
.row { --mark: var(--edge); }
.row.chosen { --mark: var(--accent); } .row.rejected { --mark: var(--bad); }
.row.peer { --mark: var(--third); } .row.floor { --mark: var(--bad); }
.point {
  width: 11px; height: 11px; margin-left: -5.5px; top: 3px; border-radius: 50%;
  background: var(--mark); border: 2px solid var(--mark);
}
.predicted .point { background: var(--card); }
.floor .point { width: 3px; height: 16px; margin-left: -1.5px; top: 0; border: 0; border-radius: 0; }
.whisker { top: 8px; height: 2px; background: var(--mark); }
.tick { color: var(--dim); font-style: normal; transform: translateX(-50%); white-space: nowrap; }
.axis { font-size: .8rem; padding-top: 6px; }
@media (max-width: 760px) {
  .row { grid-template-columns: 1fr auto; padding: 4px 0; }
  .row .name { text-align: left; }
  .row .track { grid-area: 2 / 1 / 3 / 3; }
  .axis .name, .axis .value { display: none; }
}
.phases { display: flex; height: 16px; border-radius: 6px; overflow: hidden; margin-bottom: 8px; }
.phases span { min-width: 2px; }
@media print {
  .card, pre { max-height: none; overflow: visible; }
  .graphs svg { max-width: 100%; height: auto; }
  .whole, .source button { display: none; }
}
"""

_SCRIPT = """
for (const head of document.querySelectorAll("th.sorts")) {
  const sort = () => {
    const table = head.closest("table"), body = table.tBodies[0];
    const column = [...head.parentNode.children].indexOf(head);
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const key = row => row.children[column].dataset.key;
    const order = (a, b) => {
      const x = key(a), y = key(b);
      if (x === "" || y === "") return (x === "") - (y === "");
      const difference = head.classList.contains("number") ? x - y : x.localeCompare(y);
      return up ? difference : -difference;
    };
    body.append(...[...body.rows].sort(order));
  };
  head.tabIndex = 0;
  head.addEventListener("click", sort);
  head.addEventListener("keydown", event => {
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(); }
  });
}
for (const box of document.querySelectorAll(".graphs")) {
  const graph = box.querySelector("svg.graph"), first = graph && graph.querySelector(".node");
  if (!first) continue;
  const node = first.getBoundingClientRect(), frame = box.getBoundingClientRect();
  box.scrollLeft += node.left + node.width / 2 - frame.left - frame.width / 2;
}
for (const source of document.querySelectorAll(".source")) {
  const button = document.createElement("button");
  button.textContent = "copy";
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(source.querySelector("pre").textContent);
      button.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(source.querySelector("pre"));
      button.textContent = "selected";
    }
  });
  source.append(button);
}
for (const node of document.querySelectorAll(".node")) {
  const edges = () => node.ownerSVGElement.querySelectorAll(".edge.v" + node.dataset.value);
  node.addEventListener("mouseenter", () => { for (const edge of edges()) edge.classList.add("hot"); });
  node.addEventListener("mouseleave", () => { for (const edge of edges()) edge.classList.remove("hot"); });
}
"""


def document(title: str, body: str) -> str:
    """Return a whole page that needs nothing else."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)} - superopt</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n<script>{_SCRIPT}</script>\n</body>\n</html>\n"
    )
