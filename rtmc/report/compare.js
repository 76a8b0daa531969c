// Two methods against each other: quadrants by sign (the RTMC paper's Figure 5), and the steps that differ most.
const pairOf = () => {
  const rtmc = DATA.methods.indexOf("rtmc"), other = Math.max(DATA.methods.indexOf("grpo_step"), -1);
  const y = rtmc >= 0 ? rtmc : 1, x = other >= 0 && other !== y ? other : y === 0 ? 1 : 0;
  return [x, y];
};
let [methodX, methodY] = DATA.methods.length > 1 ? pairOf() : [0, 0];
let threshold = 0.01, scope = "all", currentTask = 0;

function quadrant(x, y) {
  if (Math.abs(x) <= threshold || Math.abs(y) <= threshold) return 4;
  return x > 0 ? (y > 0 ? 0 : 2) : y > 0 ? 1 : 3;
}
const quadrantNames = () => [
  ["both +", "agree: credit"],
  ["X −, Y +", `${DATA.methods[methodY]} rescues`],
  ["X +, Y −", `${DATA.methods[methodY]} penalizes`],
  ["both −", "agree: blame"],
  ["near zero", `|A| ≤ ${threshold} by one or both`],
];

function countQuadrants() {
  const counts = {};
  const rollouts = scope === "all" ? DATA.rollouts.id.map((_, at) => at) : DATA.tasks[currentTask].rollouts;
  for (const rollout of rollouts)
    for (const row of rowsOf(rollout)) {
      const verdict = DATA.rollouts.verdict[rollout], x = DATA.advantages[methodX][row], y = DATA.advantages[methodY][row];
      (counts[verdict] = counts[verdict] || [0, 0, 0, 0, 0])[quadrant(x || 0, y || 0)]++;
    }
  return counts;
}

function drawQuadrants() {
  const counts = countQuadrants(), names = quadrantNames(), present = Object.keys(VERDICTS).filter((verdict) => counts[verdict]);
  const total = (verdict) => counts[verdict].reduce((sum, count) => sum + count, 0);
  const title = (verdict) => (verdict === "unknown" ? "reward unknown" : verdict);
  const stacks = present.map((verdict) => h("div", {}, h("strong", { class: verdict }, VERDICTS[verdict] + " " + title(verdict)), h("span", { class: "dim" }, `, ${counted(total(verdict), "step")}`),
    h("div", { class: "stack", "aria-hidden": "true" }, counts[verdict].map((count, at) => (count ? h("span", { class: "q" + at, title: names[at].join(": "), style: { width: `${(100 * count) / total(verdict)}%` } }, count / total(verdict) > 0.16 ? names[at][0] : "") : null)))));
  const table = h("table", { class: "numbers" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "quadrant"), present.map((verdict) => h("th", { scope: "col" }, "steps of " + title(verdict))))),
    h("tbody", {}, names.map(([name, meaning], at) => h("tr", {}, h("th", { scope: "row" }, h("span", { class: "key q" + at }), name, h("span", { class: "dim" }, ` – ${meaning}`)), present.map((verdict) => h("td", {}, `${counts[verdict][at]} (${percent(counts[verdict][at], total(verdict))})`))))));
  byId("quadrant-figure").replaceChildren(...(present.length ? [...stacks, h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Quadrants, a table" }, table)] : [h("p", {}, "There are no steps here.")]));
}

function setThreshold(input) {
  const told = input.valueAsNumber >= 0; // NaN where the field is empty or holds no number
  input.setAttribute("aria-invalid", String(!told));
  if (told) (threshold = input.valueAsNumber), drawQuadrants();
  else byId("quadrant-figure").replaceChildren(h("p", { class: "warning" }, "The threshold is a number, 0 or more."));
}

function drawDiffer() {
  const key = methodX < methodY ? `${methodX},${methodY}` : `${methodY},${methodX}`, rows = DATA.differ[key] || [];
  if (!rows.length) return void byId("differ-table").replaceChildren(h("p", {}, "On no step do these two differ."));
  const heads = ["step", `A, ${DATA.methods[methodX]}`, `A, ${DATA.methods[methodY]}`, "what it did", "what it saw before"];
  byId("differ-table").className = "differ";
  byId("differ-table").replaceChildren(longTable("Steps that differ most", heads, rows, ([row, alike]) => {
    const rollout = ROLLOUT_OF[row], saw = DATA.steps.saw[row], did = DATA.steps.did[row];
    return h("tr", {}, h("td", {}, h("button", { type: "button", class: "text", onclick: () => openStep(row) }, `${DATA.rollouts.id[rollout]}, step ${stepOf(row)}`), h("br"), verdictMark(rollout), alike > 1 ? h("div", { class: "dim" }, `and ${counted(alike - 1, "step")} like it`) : null),
      h("td", { class: "number" }, signed(DATA.advantages[methodX][row])), h("td", { class: "number" }, signed(DATA.advantages[methodY][row])),
      h("td", {}, h("code", {}, short(actionOf(row), 120)), h("div", { class: "small" }, short(text(did), 260))), h("td", { class: "small" }, short(text(saw), 260)));
  }, 10));
}

function startCompare() {
  if (DATA.methods.length < 2) {
    for (const id of ["quadrant-figure", "differ-table"]) byId(id).replaceChildren(h("p", {}, "This needs two methods: give --method twice."));
    return;
  }
  const choose = (label, selected, act) => h("label", {}, label, h("select", { onchange: (event) => (act(Number(event.target.value)), drawQuadrants(), drawDiffer()) }, DATA.methods.map((method, at) => h("option", { value: at, selected: at === selected }, method))));
  const limit = h("input", { type: "number", min: 0, step: 0.01, value: threshold, oninput: (event) => setThreshold(event.target) });
  const scopes = h("select", { id: "quadrant-scope", onchange: (event) => ((scope = event.target.value), drawQuadrants()) }, h("option", { value: "all" }, "all tasks"), h("option", { value: "task" }, "this task"));
  byId("quadrant-tools").replaceChildren(choose("X: ", methodX, (at) => (methodX = at)), choose("Y: ", methodY, (at) => (methodY = at)), h("label", {}, "|A| > ", limit), h("label", {}, "of ", scopes));
  drawQuadrants();
  drawDiffer();
}
