// The page's data and the few things every figure needs. Texts of logs become text nodes and nothing else.
const DATA = readData(document.getElementById("data"));
const VERDICTS = { success: "✓", failure: "✗", unknown: "?" };

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(node.style, value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined).map((child) => (child instanceof Node ? child : String(child))));
  return node;
}
const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) => fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
const byId = (id) => document.getElementById(id);

const short = (text, length) => {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length <= length ? line : line.slice(0, length - 1) + "…";
};
const number = (value, digits = 3) => (value === null || value === undefined ? "–" : (Math.abs(value) < 0.5 * 10 ** -digits ? 0 : value).toFixed(digits).replace("-", "−"));
const signed = (value) => (value > 0 ? "+" : "") + number(value);
const percent = (part, whole) => (whole ? ((100 * part) / whole).toFixed(part === 0 ? 0 : 1) + " %" : "–");
const counted = (count, word) => count.toLocaleString("en") + " " + word + (count === 1 ? "" : "s");
const mean = (rows, column) => {
  const known = rows.map((row) => column[row]).filter((value) => value !== null && value !== undefined);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
};

const text = (at) => (at < 0 ? "" : DATA.texts[at]);
const missing = (at) => (at >= 0 && at in DATA.lengths ? DATA.lengths[at] : 0);
const stateOf = (row) => text(DATA.steps.state[row]);
const actionOf = (row) => text(DATA.steps.action[row]);

// Which rollout and task a row belongs to: rows of a rollout stand together.
const ROLLOUT_OF = [], TASK_OF = [];
DATA.rollouts.id.forEach((_, rollout) => {
  const first = DATA.rollouts.first[rollout];
  for (let step = 0; step < DATA.rollouts.steps[rollout]; step++) ROLLOUT_OF[first + step] = rollout;
});
DATA.tasks.forEach((task, at) => task.rollouts.forEach((rollout) => (TASK_OF[rollout] = at)));
const stepOf = (row) => row - DATA.rollouts.first[ROLLOUT_OF[row]];
const rowsOf = (rollout) => Array.from({ length: DATA.rollouts.steps[rollout] }, (_, step) => DATA.rollouts.first[rollout] + step);

function verdictText(rollout) {
  const outcome = DATA.rollouts.outcome[rollout], cut = DATA.rollouts.ending[rollout] === "truncated" ? ", cut off" : "";
  const verdict = DATA.rollouts.verdict[rollout];
  return verdict === "unknown" ? "reward unknown" + cut : verdict + ", reward " + number(outcome, Number.isInteger(outcome) ? 0 : 3) + cut;
}
const verdictMark = (rollout) => h("span", { class: DATA.rollouts.verdict[rollout] }, VERDICTS[DATA.rollouts.verdict[rollout]] + " " + verdictText(rollout));

// A colour between bad (-1), middle (0) and good (1); it follows the light or dark scheme by itself.
function colour(value) {
  if (value === null) return "var(--none)";
  const share = Math.round(100 * Math.min(1, Math.abs(value)));
  return `color-mix(in srgb, var(${value < 0 ? "--bad" : "--good"}) ${share}%, var(--mid))`;
}

// A table that shows `step` rows at a time, so that thousands cost nothing before they are wanted.
function longTable(label, heads, rows, draw, step = 100) {
  const body = h("tbody"), more = h("button", { type: "button" });
  let shown = 0;
  const grow = () => {
    body.append(...rows.slice(shown, shown + step).map(draw));
    shown = Math.min(rows.length, shown + step);
    more.textContent = `Show ${Math.min(step, rows.length - shown)} more of ${rows.length}`;
    more.hidden = shown >= rows.length;
  };
  more.addEventListener("click", grow);
  grow();
  const table = h("table", {}, h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))), body);
  return h("div", {}, h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, table), more);
}
// What is behind a summary is made when it is first opened.
function folded(summary, make, open = false) {
  const box = h("details", {}, h("summary", {}, summary));
  const unfold = () => box.open && box.children.length === 1 && box.append(make());
  box.open = open;
  unfold(); // at once: the event comes later, when the empty fold has been seen
  box.addEventListener("toggle", unfold);
  return box;
}

// One tab stop for a figure; the arrow keys go from part to part, Enter and the space bar choose. The figure is an HTML
// element: an SVG element that listens for the focus would become a stop itself.
function rove(figure, parts, next) {
  const move = (to) => {
    parts.forEach((part) => part.setAttribute("tabindex", "-1"));
    to.setAttribute("tabindex", "0");
  };
  if (parts.length) move(parts[0]);
  figure.addEventListener("focusin", (event) => parts.includes(event.target) && move(event.target));
  figure.addEventListener("keydown", (event) => {
    const at = parts.indexOf(event.target);
    if (at < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      event.target.dispatchEvent(new Event("choose"));
      return;
    }
    const to = event.key === "Home" ? 0 : event.key === "End" ? parts.length - 1 : next(at, event.key);
    if (to === null || to === undefined || !parts[to]) return;
    event.preventDefault();
    parts[to].focus();
  });
}
function choosable(node, choose) {
  node.addEventListener("click", choose);
  node.addEventListener("choose", choose);
  return node;
}
