// The states of one task: circles in the columns and rows that Python gave them, actions as lines between them.
const COLUMN = 168, NARROWEST = 92, ROW = 50, MARGIN = 44, LETTER = 5.9;
const rewarded = (row) => DATA.rollouts.verdict[ROLLOUT_OF[row]] !== "unknown";
const columnValues = {
  outcome: { name: "mean reward of the rollouts", of: (rows) => mean(rows.map((row) => ROLLOUT_OF[row]), DATA.rollouts.outcome), centred: false },
};
if (DATA.steps.q) columnValues.q = { name: `Q (${DATA.value})`, of: (rows) => mean(rows, DATA.steps.q), centred: false };
DATA.methods.forEach((method, at) => (columnValues["a" + at] = { name: `advantage (${method})`, of: (rows) => mean(rows.filter(rewarded), DATA.advantages[at]), centred: true }));
let treeColour = DATA.steps.q ? "q" : "a0";

function nodeTitle(node) {
  if (node.kind === "end") return `End: ${node.verdict === "unknown" ? "reward unknown" : node.verdict}, ${counted(node.rows.length, "rollout")}`;
  const rollouts = new Set(node.rows.map((row) => ROLLOUT_OF[row])).size;
  const what = node.kind === "fold" ? `Run of ${node.states.length} states that one rollout alone visits` : `State at depth ${node.column}`;
  return `${what}, ${counted(node.rows.length, "step")} of ${counted(rollouts, "rollout")}`;
}
function chooseNode(node) {
  if (node.kind === "end" && node.rows.length === 1) openStep(node.rows[0]);
  else openSteps(nodeTitle(node) + (node.kind === "end" ? ": their last steps" : ""), node.kind === "state" ? text(node.states[0]) : null, node.rows);
}
const edgeName = (edge) => (edge.action < 0 ? counted(new Set(edge.rows.map((row) => DATA.steps.action[row])).size, "action") + " without leaving the state" : text(edge.action));

function drawTree(graph, figure, legend) {
  const values = columnValues[treeColour], known = graph.edges.map((edge) => values.of(edge.rows)).filter((value) => value !== null);
  let low = Math.min(...known), high = Math.max(...known);
  if (values.centred) high = Math.max(Math.abs(low), Math.abs(high)), low = -high;
  const shade = (value) => (value === null ? null : high > low ? (2 * (value - low)) / (high - low) - 1 : 0);
  legend.replaceChildren(known.length && low === high ? "all " + number(low) : known.length ? h("span", {}, number(low), h("span", { class: "ramp", style: { background: "linear-gradient(to right, var(--bad), var(--mid), var(--good))" } }), number(high)) : "nothing to colour by");
  const most = Math.max(...graph.nodes.map((node) => node.rows.length)), mostTaken = Math.max(1, ...graph.edges.map((edge) => edge.rows.length));
  // Columns as wide as all of them fit into the page at once, if that leaves room for a word.
  const deepest = Math.max(...graph.nodes.map((node) => node.column));
  const column = Math.min(COLUMN, Math.max(NARROWEST, Math.floor((figure.clientWidth - 4 - 2 * MARGIN - 30) / Math.max(1, deepest))));
  const x = (node) => MARGIN + node.column * column, y = (node) => MARGIN + node.row * ROW;
  const radius = (node) => (node.kind === "end" ? 11 : 11 + 8 * Math.sqrt(node.rows.length / most));
  const width = 2 * MARGIN + column * deepest + 30, height = 2 * MARGIN + ROW * Math.max(...graph.nodes.map((node) => node.row));
  const labelled = graph.edges.length <= 150, labels = [], between = new Map(), placed = [];
  // Labels stand at the end of their line; one that would touch another moves away, and is left to the line's title if there is no room.
  const label = (words, right, bottom, step) => {
    const left = right - LETTER * words.length - 4;
    for (let at = bottom, tries = 0; tries < 4; at += step, tries++)
      if (!placed.some((other) => other.left < right && left < other.right && Math.abs(other.at - at) < 13)) {
        placed.push({ left, right: right + 4, at });
        labels.push(s("text", { class: "sub halo", x: right, y: at, "text-anchor": "end", "aria-hidden": "true", "pointer-events": "none" }, words));
        return;
      }
  };
  const lines = graph.edges.map((edge) => {
    const from = graph.nodes[edge.source], to = graph.nodes[edge.target], value = values.of(edge.rows);
    const pair = `${edge.source},${edge.target}`, twin = between.get(pair) || 0;
    between.set(pair, twin + 1);
    const bow = twin === 0 ? 0 : (twin % 2 ? -1 : 1) * 14 * Math.ceil(twin / 2);
    const x0 = x(from), y0 = y(from), x1 = x(to), y1 = y(to), half = (x1 - x0) / 2;
    const thick = 1.5 + (from === to ? 3 : 7) * (edge.rows.length / mostTaken);
    let path;
    if (from === to) path = `M${x0 - 8},${y0 - radius(from) + 4} C${x0 - 26},${y0 - 44} ${x0 + 26},${y0 - 44} ${x0 + 8},${y0 - radius(from) + 4}`;
    else if (x1 === x0) path = `M${x0},${y0} C${x0 + 60 + bow},${y0} ${x0 + 60 + bow},${y1} ${x1},${y1}`;
    else if (x1 <= x0) path = `M${x0},${y0} C${x0 + 50},${Math.max(y0, y1) + 40 + bow} ${x1 - 50},${Math.max(y0, y1) + 40 + bow} ${x1},${y1}`;
    else path = `M${x0},${y0} C${x0 + half},${y0 + bow} ${x1 - half},${y1 + bow} ${x1},${y1}`;
    if (labelled && x1 > x0) {
      const below = y1 > y0, letters = Math.max(8, Math.min(20, Math.floor((column - radius(to) - (y1 === y0 ? radius(from) : 15) - 9) / LETTER)));
      label(short(edgeName(edge), letters), x1 - radius(to) - 5, y1 + bow + (below ? thick / 2 + 12 : -thick / 2 - 4), below ? 13 : -13);
    }
    const title = `${edgeName(edge)}\n${counted(edge.rows.length, "step")}, ${values.name} ${number(value)}`;
    const group = s("g", {}, s("title", {}, title), s("path", { class: "hit", d: path, "pointer-events": "stroke" }),
      s("path", { class: "edge mark", d: path, stroke: colour(shade(value)), "stroke-width": thick.toFixed(1), "stroke-dasharray": x1 <= x0 && from !== to ? "6 4" : null }));
    group.style.cursor = "pointer";
    group.addEventListener("click", () => openSteps("Action " + short(edgeName(edge), 120), null, edge.rows));
    return group;
  });
  const parts = graph.nodes.map((node) => {
    const value = values.of(node.rows), r = radius(node), at = { transform: `translate(${x(node)},${y(node)})` };
    const paint = node.kind === "end" ? `var(--${{ success: "good", failure: "bad", unknown: "none" }[node.verdict]})` : colour(shade(value));
    const looks = { class: "mark", fill: node.kind === "end" ? "var(--back)" : paint, stroke: node.kind === "end" ? paint : "var(--none)", "stroke-width": node.kind === "end" ? 2.5 : 1 };
    const shape = node.kind === "state" ? s("circle", { ...looks, r }) : node.kind === "fold" ? s("rect", { ...looks, x: -24, y: -11, width: 48, height: 22, rx: 11 }) : s("rect", { ...looks, x: -r, y: -r, width: 2 * r, height: 2 * r, rx: 3 });
    const name = nodeTitle(node) + (node.kind === "end" ? "" : `, ${values.name} ${number(value)}`);
    const mark = node.kind === "end" ? VERDICTS[node.verdict] + (node.rows.length > 1 ? node.rows.length : "") : node.kind === "fold" ? "×" + node.rows.length : node.rows.length;
    const group = s("g", { role: "button", "aria-label": name, ...at }, s("title", {}, name + (node.kind === "state" ? "\n" + short(text(node.states[0]), 300) : "")), shape,
      s("text", { class: node.kind !== "end" && value !== null && Math.abs(shade(value)) > 0.55 ? "on" : "", "text-anchor": "middle", y: 4 }, mark));
    return choosable(group, () => chooseNode(node));
  });
  // By column, then by row: so the keys up and down go through a column, left and right to the nearest of the next.
  const order = graph.nodes.map((_, at) => at).sort((a, b) => graph.nodes[a].column - graph.nodes[b].column || graph.nodes[a].row - graph.nodes[b].row);
  const svg = s("svg", { role: "group", "aria-label": "States of the task and the actions between them", viewBox: `0 0 ${width} ${height}` }, lines, labels, order.map((at) => parts[at]));
  const frame = h("div", {}, svg);
  rove(frame, order.map((at) => parts[at]), (at, key) => {
    const here = graph.nodes[order[at]], columns = { ArrowRight: 1, ArrowLeft: -1 };
    if (key === "ArrowDown" || key === "ArrowUp") {
      const to = at + (key === "ArrowDown" ? 1 : -1);
      return order[to] !== undefined && graph.nodes[order[to]].column === here.column ? to : null;
    }
    if (!(key in columns)) return null;
    const near = order.map((_, to) => to).filter((to) => graph.nodes[order[to]].column === here.column + columns[key]);
    return near.sort((a, b) => Math.abs(graph.nodes[order[a]].row - here.row) - Math.abs(graph.nodes[order[b]].row - here.row))[0];
  });
  figure.replaceChildren(frame);
  return { svg, width, height, root: graph.nodes.length ? y(graph.nodes[0]) : 0 };
}

function showTree(task) {
  const graph = DATA.tasks[task].graph, tools = byId("tree-tools"), box = byId("tree-figure"), table = byId("tree-table");
  table.replaceChildren();
  if (!graph) {
    tools.replaceChildren();
    box.replaceChildren(h("p", {}, "The rollouts of this task have no steps."));
    return;
  }
  const figure = h("div", { class: "figure" }), legend = h("span", {});
  let drawn = null, scale = 1;
  const zoom = (to) => {
    scale = Math.min(3, Math.max(0.2, to));
    const middle = [(figure.scrollLeft + figure.clientWidth / 2) / (figure.scrollWidth || 1), (figure.scrollTop + figure.clientHeight / 2) / (figure.scrollHeight || 1)];
    drawn.svg.setAttribute("width", Math.round(drawn.width * scale));
    drawn.svg.setAttribute("height", Math.round(drawn.height * scale));
    figure.scrollLeft = middle[0] * figure.scrollWidth - figure.clientWidth / 2;
    figure.scrollTop = middle[1] * figure.scrollHeight - figure.clientHeight / 2;
  };
  const fit = () => {
    zoom(Math.min(1.2, Math.max(0.8, (figure.clientWidth - 4) / drawn.width)));
    figure.scrollLeft = 0;
    figure.scrollTop = drawn.root * scale - figure.clientHeight / 2;
  };
  const whole = () => zoom(Math.min((figure.clientWidth - 4) / drawn.width, (figure.clientHeight - 4) / drawn.height));
  const colours = h("select", { onchange: (event) => ((treeColour = event.target.value), (drawn = drawTree(graph, figure, legend)), zoom(scale)) },
    Object.entries(columnValues).map(([key, value]) => h("option", { value: key, selected: key === treeColour }, value.name)));
  const button = (label, sign, act) => h("button", { type: "button", "aria-label": label, title: label, onclick: act }, sign);
  tools.replaceChildren(h("label", {}, "Colour: ", colours), legend, h("span", {}, button("Zoom in", "+", () => zoom(scale * 1.25)), " ", button("Zoom out", "−", () => zoom(scale / 1.25)), " ", button("Show the whole drawing", "whole", whole)));
  box.replaceChildren(figure);
  drawn = drawTree(graph, figure, legend);
  fit();
  figure.addEventListener("keydown", (event) => {
    const act = { "+": () => zoom(scale * 1.25), "=": () => zoom(scale * 1.25), "-": () => zoom(scale / 1.25), 0: whole }[event.key];
    if (act && !event.ctrlKey && !event.metaKey) event.preventDefault(), act();
  });
  figure.addEventListener("wheel", (event) => event.ctrlKey && (event.preventDefault(), zoom(scale * (event.deltaY < 0 ? 1.1 : 1 / 1.1))), { passive: false });
  dragToPan(figure);
  const notes = [];
  if (graph.folded) notes.push("Runs of states that one rollout alone visits are drawn as one box.");
  if (graph.left_out) notes.push(`${counted(graph.left_out, "node")} that the fewest rollouts visit ${graph.left_out === 1 ? "is" : "are"} not drawn.`);
  if (notes.length) table.append(h("p", { class: "small" }, notes.join(" ")));
  table.append(folded("The same as a table", () => treeTable(graph)));
}

// Touch pans by itself, as the figure scrolls; this is for the mouse. A drag is no choice of what lies under it.
function dragToPan(figure) {
  let from = null, moved = false;
  figure.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "mouse" && event.button === 0) from = [event.clientX + figure.scrollLeft, event.clientY + figure.scrollTop], moved = false;
  });
  figure.addEventListener("pointermove", (event) => {
    if (!from || !event.buttons) return void (from = null);
    const to = [from[0] - event.clientX, from[1] - event.clientY];
    moved = moved || Math.hypot(to[0] - figure.scrollLeft, to[1] - figure.scrollTop) > 5;
    if (moved) figure.classList.add("dragged"), ([figure.scrollLeft, figure.scrollTop] = to);
  });
  figure.addEventListener("pointerup", () => ((from = null), figure.classList.remove("dragged")));
  figure.addEventListener("click", (event) => moved && (event.stopPropagation(), (moved = false)), true);
}

function treeTable(graph) {
  const columns = Object.values(columnValues), place = (node) => (node.kind === "end" ? nodeTitle(node) : node.kind === "fold" ? `run of ${node.states.length} states` : short(text(node.states[0]), 90) || "(empty)");
  const choose = (label, act) => h("button", { type: "button", class: "text", onclick: act }, label);
  const rows = [...graph.edges].sort((a, b) => graph.nodes[a.source].column - graph.nodes[b.source].column || a.source - b.source || b.rows.length - a.rows.length);
  return longTable("States and actions", ["depth", "state", "action", "leads to", "steps", ...columns.map((column) => column.name)], rows, (edge) => {
    const from = graph.nodes[edge.source], to = graph.nodes[edge.target];
    return h("tr", {}, h("td", {}, from.column), h("td", {}, choose(place(from), () => chooseNode(from))), h("td", {}, choose(short(edgeName(edge), 90), () => openSteps("Action " + short(edgeName(edge), 120), null, edge.rows))),
      h("td", {}, to === from ? "the same state" : choose(place(to), () => chooseNode(to))), h("td", { class: "number" }, edge.rows.length), columns.map((column) => h("td", { class: "number" }, number(column.of(edge.rows)))));
  });
}
