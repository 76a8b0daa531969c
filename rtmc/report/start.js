// The choice of the task, and the first drawing.
function taskLabel(task) {
  const verdicts = task.rollouts.map((rollout) => DATA.rollouts.verdict[rollout]), known = verdicts.filter((verdict) => verdict !== "unknown").length;
  const solved = verdicts.filter((verdict) => verdict === "success").length;
  return known ? `${solved} of ${known} solved` + (known < verdicts.length ? `, ${verdicts.length - known} unknown` : "") : `${counted(verdicts.length, "rollout")}, reward unknown`;
}
const picker = byId("task-select");

function showTask(at) {
  currentTask = at;
  picker.value = String(at);
  byId("task-before").disabled = at === 0;
  byId("task-after").disabled = at === DATA.tasks.length - 1;
  const task = DATA.tasks[at];
  byId("task-facts").textContent = `${at + 1} of ${DATA.tasks.length}: ${counted(task.rollouts.length, "rollout")}, ${taskLabel(task).replace(/^\d+ rollouts?, /, "")}`;
  showTree(at);
  showBars(at);
  if (scope === "task" && DATA.methods.length > 1) drawQuadrants();
}
fill(picker, {}, DATA.tasks.map((task, at) => h("option", { value: at }, `${short(task.id, 60)} – ${taskLabel(task)}`)));
picker.addEventListener("change", () => showTask(Number(picker.value)));
byId("task-before").addEventListener("click", () => showTask(currentTask - 1));
byId("task-after").addEventListener("click", () => showTask(currentTask + 1));
startCompare();
if (DATA.tasks.length) showTask(0);
