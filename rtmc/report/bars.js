// Advantages step by step: a row a rollout, a column a method (the RTMC paper's Figure 4).
const SHOWN = 20;

function barFigure(rollout, method, scale) {
  const rows = rowsOf(rollout), column = DATA.advantages[method], tall = 56, middle = tall / 2;
  const wide = Math.max(120, Math.min(rows.length * 22, 460)), each = wide / rows.length, thin = Math.min(18, each * 0.8);
  const verdict = { success: "good", failure: "bad", unknown: "none" }[DATA.rollouts.verdict[rollout]];
  const bars = rows.map((row, step) => {
    const value = column[row] || 0, size = scale ? (Math.abs(value) / scale) * (middle - 2) : 0, left = step * each + (each - thin) / 2;
    const name = `Step ${step}, A by ${DATA.methods[method]} ${signed(value)}: ${short(actionOf(row), 100)}`;
    const bar = s("g", { role: "button", "aria-label": name }, s("title", {}, name), s("rect", { class: "hitbox", x: step * each, y: 0, width: each, height: tall, fill: "transparent" }),
      s("rect", { class: "mark", x: left, y: value >= 0 ? middle - Math.max(size, 1) : middle, width: thin, height: Math.max(size, 1), fill: size ? `var(--${verdict})` : "var(--none)" }));
    return choosable(bar, () => openStep(row));
  });
  const svg = s("svg", { role: "group", "aria-label": `Advantages by ${DATA.methods[method]}, ${counted(rows.length, "step")}`, viewBox: `0 0 ${wide} ${tall}`, width: wide, height: tall, style: { maxWidth: "100%" }, preserveAspectRatio: "xMinYMid meet" },
    s("line", { x1: 0, x2: wide, y1: middle, y2: middle, stroke: "var(--line)" }), bars);
  const frame = h("div", {}, h("span", { class: "small" }, DATA.methods[method]), svg);
  rove(frame, bars, (at, key) => ({ ArrowRight: at + 1, ArrowLeft: at - 1 })[key]);
  return frame;
}

function barTable(rollout) {
  return longTable("Advantages of the steps", ["step", "action", ...DATA.methods], rowsOf(rollout), (row) =>
    h("tr", {}, h("td", { class: "number" }, stepOf(row)), h("td", {}, h("button", { type: "button", class: "text", onclick: () => openStep(row) }, short(actionOf(row), 120) || "(no text)")), DATA.advantages.map((column) => h("td", { class: "number" }, signed(column[row])))));
}

function showBars(task) {
  const box = byId("bars-figure"), order = { success: 0, failure: 1, unknown: 2 };
  const rollouts = [...DATA.tasks[task].rollouts].sort((a, b) => order[DATA.rollouts.verdict[a]] - order[DATA.rollouts.verdict[b]] || a - b);
  const scales = DATA.advantages.map((column) => Math.max(0, ...rollouts.flatMap(rowsOf).map((row) => Math.abs(column[row] || 0))));
  const heads = DATA.methods.map((method, at) => h("div", {}, h("strong", {}, method), h("span", { class: "dim" }, scales[at] ? ` full height: ${number(scales[at])}` : " all 0 in this task")));
  const list = h("div", {}), more = h("button", { type: "button" });
  let shown = 0;
  const grow = () => {
    list.append(...rollouts.slice(shown, shown + SHOWN).map((rollout) => h("div", { class: "rollout" },
      h("div", {}, h("strong", {}, DATA.rollouts.id[rollout]), " ", verdictMark(rollout), h("span", { class: "dim" }, `, ${counted(DATA.rollouts.steps[rollout], "step")}`)),
      DATA.rollouts.steps[rollout] ? [h("div", { class: "methods" }, DATA.methods.map((_, method) => barFigure(rollout, method, scales[method]))), folded("The same as a table", () => barTable(rollout))] : null)));
    shown = Math.min(rollouts.length, shown + SHOWN);
    more.textContent = `Show ${Math.min(SHOWN, rollouts.length - shown)} more of ${rollouts.length} rollouts`;
    more.hidden = shown >= rollouts.length;
  };
  more.addEventListener("click", grow);
  grow();
  box.replaceChildren(h("p", { class: "small" }, h("span", { class: "success" }, "■ success "), h("span", { class: "failure" }, "■ failure "), h("span", { class: "unknown" }, "■ reward unknown, or A = 0")), h("div", { class: "methods" }, heads), list, more);
}
