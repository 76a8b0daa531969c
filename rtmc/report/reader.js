// The panel in which steps are read. Escape closes it and the focus goes back to where it came from.
const reader = byId("reader");

function openReader(title, tools, ...content) {
  const close = h("button", { type: "button", "aria-label": "Close", onclick: () => reader.close() }, "✕");
  const heading = h("h2", { id: "reader-h", tabindex: -1 }, title);
  reader.replaceChildren();
  fill(reader, {}, [h("div", { class: "bar" }, heading, h("span", {}, tools, close)), content]);
  if (!reader.open) reader.showModal();
  reader.scrollTop = 0;
  heading.focus();
}
reader.addEventListener("click", (event) => event.target === reader && event.clientX < reader.getBoundingClientRect().left && reader.close());

function block(name, at) {
  if (at < 0) return null;
  const whole = missing(at);
  const cut = whole ? h("p", { class: "small" }, `… cut here: ${whole.toLocaleString("en")} characters in the log`) : null;
  return [h("h3", {}, name), h("pre", { tabindex: 0, "aria-label": name }, text(at) || "(empty)"), cut];
}

function numbersOf(row) {
  const cells = DATA.methods.map((method, at) => h("tr", {}, h("th", { scope: "row" }, "A, " + method), h("td", { class: "number" }, signed(DATA.advantages[at][row]))));
  const names = { return: "return G", q: "Q of the action", v: "V of the state", visits: "N(s), visits of the state", action_visits: "N(s, a), of this action in it" };
  for (const [name, label] of Object.entries(names)) {
    const column = DATA.steps[name];
    if (column && column[row] !== null) cells.push(h("tr", {}, h("th", { scope: "row" }, label), h("td", { class: "number" }, number(column[row], name.endsWith("visits") ? 0 : 3))));
  }
  return h("table", {}, h("tbody", {}, cells));
}

function stepContent(row) {
  const steps = DATA.steps, rollout = ROLLOUT_OF[row], last = stepOf(row) === DATA.rollouts.steps[rollout] - 1;
  return [
    numbersOf(row),
    h("dl", {}, h("dt", {}, "Action key"), h("dd", {}, h("code", {}, actionOf(row))), h("dt", {}, "State key"), h("dd", {}, h("code", {}, stateOf(row) || "(empty: nothing has happened yet)"))),
    block("What the model saw", steps.saw[row]),
    block("What it thought", steps.thought[row]),
    block("What it did", steps.did[row]),
    block("What came back", last ? DATA.rollouts.answer[rollout] : steps.saw[row + 1]),
  ];
}

function openStep(row) {
  const rollout = ROLLOUT_OF[row], count = DATA.rollouts.steps[rollout], step = stepOf(row);
  const go = (label, sign, to) => h("button", { type: "button", "aria-label": label, disabled: to < 0 || to >= count, onclick: () => openStep(DATA.rollouts.first[rollout] + to) }, sign);
  openReader(`Step ${step} of ${DATA.rollouts.id[rollout]}`, [go("Previous step", "‹", step - 1), go("Next step", "›", step + 1)],
    h("p", {}, verdictMark(rollout), h("span", { class: "dim" }, `, steps 0 to ${count - 1}, task ${DATA.tasks[TASK_OF[rollout]].id}`)), stepContent(row));
}

// The steps behind a state or an action: by action, then one fold a step.
function openSteps(title, key, rows) {
  const actions = new Map();
  rows.forEach((row) => actions.set(DATA.steps.action[row], [...(actions.get(DATA.steps.action[row]) || []), row]));
  const sorted = [...actions.values()].sort((a, b) => b.length - a.length);
  const columns = [["Q", DATA.steps.q], ...DATA.methods.map((method, at) => ["A, " + method, DATA.advantages[at]])].filter(([, column]) => column);
  const folds = rows.slice(0, 200).map((row, at) => {
    const rollout = ROLLOUT_OF[row];
    return folded([verdictMark(rollout), ` ${DATA.rollouts.id[rollout]}, step ${stepOf(row)}: `, h("code", {}, short(actionOf(row), 80))], () => h("div", {}, stepContent(row)), at === 0);
  });
  openReader(title, [],
    key === null ? null : h("p", {}, h("span", { class: "dim" }, "State key "), h("code", {}, key || "(empty: nothing has happened yet)")),
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Actions taken" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "action"), h("th", { scope: "col", class: "number" }, "steps"), columns.map(([name]) => h("th", { scope: "col", class: "number" }, name)))),
      h("tbody", {}, sorted.slice(0, 100).map((taken) => h("tr", {}, h("td", {}, h("code", {}, short(actionOf(taken[0]), 160))), h("td", { class: "number" }, taken.length), columns.map(([, column]) => h("td", { class: "number" }, number(mean(taken, column))))))))),
    h("h3", {}, counted(rows.length, "step") + (rows.length > 200 ? ", the first 200" : "")), ...folds);
}
