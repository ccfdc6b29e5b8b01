"use strict";
// Shows the trajectories that the page carries. All text is set as text, never as markup.

const data = JSON.parse(document.getElementById("data").textContent);
const byGroup = Map.groupBy(data.trajectories, (trajectory) => trajectory.group);
const SORTS = {
  "as stored": null,
  "reward": (t) => t.reward,
  "tokens": (t) => t.tokens,
  "turns": (t) => t.turns,
  "calls": (t) => t.calls,
  "failed calls": (t) => t.errors,
  "surprisal": (t) => -meanLogprob(t),
};
const COLOURS = ["log-probability", "mask", "none"];
let colour = COLOURS[0];
let current = null;

const place = (id) => document.getElementById(id);

function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children.filter((child) => child !== null));
  return made;
}

function meanLogprob(trajectory) {
  const all = trajectory.steps.flatMap((step) => step.logprobs).filter((each) => each !== null);
  return all.length ? all.reduce((sum, each) => sum + each, 0) / all.length : 0;
}

function badge(trajectory) {
  return element("span", `badge ${trajectory.correct ? "right" : "wrong"}`, trajectory.verdict.replace("_", " "));
}

function counts(trajectory) {
  const failed = trajectory.errors ? ` (${trajectory.errors} failed)` : "";
  return `${plural(trajectory.tokens, "token")}, ${plural(trajectory.turns, "turn")}, ` +
    `${plural(trajectory.calls, "call")}${failed}`;
}

function plural(count, name) {
  return `${count} ${name}${count === 1 ? "" : "s"}`;
}

function searched(trajectory) {
  const statuses = trajectory.steps.flatMap((step) => step.calls.map((call) => call.status));
  const fields = ["id", "stage", "family", "problem", "question", "finish", "verdict", "generator"];
  return [...fields.map((name) => trajectory[name]), ...statuses].join("\n").toLowerCase();
}

function shown() {
  const words = place("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const verdict = place("verdict").value;
  const found = data.trajectories.filter((trajectory) => {
    if (!trajectory.selected) return false;  // it is here for its group, which shows it
    if (verdict && trajectory.correct !== (verdict === "right")) return false;
    const text = words.length ? searched(trajectory) : "";
    return words.every((word) => text.includes(word));
  });
  const key = SORTS[place("sort").value];
  return key ? found.sort((one, other) => key(other) - key(one)) : found;
}

function showList() {
  const found = shown();
  place("count").textContent = `${found.length} of ${data.trajectories.length} on this page`;
  place("list").replaceChildren(...found.map((trajectory) => {
    const button = element("button", "", badge(trajectory), trajectory.id,
      element("small", "", `${trajectory.family} · ${counts(trajectory)}`));
    button.dataset.id = trajectory.id;
    button.setAttribute("aria-current", String(trajectory === current));
    button.addEventListener("click", () => open(trajectory));
    return element("li", "", button);
  }));
}

function open(trajectory) {
  current = trajectory;
  history.replaceState(null, "", `#${encodeURIComponent(trajectory.id)}`);
  for (const button of place("list").querySelectorAll("button")) {
    button.setAttribute("aria-current", String(button.dataset.id === trajectory.id));
  }
  showTrajectory();
  showGroup();
  place("trajectory").scrollTop = 0;
}

function showTrajectory() {
  place("trajectory").replaceChildren(
    element("h2", "", badge(current), current.id), facts(current), colours(), ...current.steps.map(stepView));
}

function facts(trajectory) {
  const rows = {
    "problem": `${trajectory.question}  (${trajectory.problem})`,
    "right answer": trajectory.gold,
    "given answer": trajectory.extracted || "none",
    "reward": `${trajectory.reward} · ${trajectory.finish}`,
    "length": `${counts(trajectory)} · mean log-probability ${meanLogprob(trajectory).toFixed(3)}`,
    "made by": `${trajectory.generator}, step ${trajectory.step} of ${trajectory.stage}`,
  };
  return element("dl", "facts", ...Object.entries(rows).flatMap(
    ([name, value]) => [element("dt", "", name), element("dd", "", value)]));
}

function colours() {
  const bar = element("div", "", element("span", "faint", "colour by"));
  bar.id = "colours";
  for (const name of COLOURS) {
    const button = element("button", "", name);
    button.setAttribute("aria-pressed", String(name === colour));
    button.addEventListener("click", () => { colour = name; showTrajectory(); });
    bar.append(button);
  }
  const legend = element("span", "", ...legendParts());
  legend.id = "legend";
  bar.append(legend);
  return bar;
}

function legendParts() {
  const sample = (text, background) => {
    const part = element("span", "", text);
    part.style.background = background;
    return part;
  };
  if (colour === "mask") return [sample("learned", background("model", -1)), " ", sample("masked", background("tool", null))];
  if (colour === "none") return [];
  return [1, 0.5, 0.1, 0.01].map((p) => sample(`p = ${p}`, background("model", Math.log(p))));
}

function background(kind, logprob) {
  if (colour === "mask") return kind === "model" ? "#cfe6f5" : "#eceef1";
  if (colour === "none" || logprob === null) return "transparent";
  return `rgba(213, 94, 0, ${Math.min(1, -logprob / 4.6).toFixed(3)})`;  // full at p = 0.01
}

function stepView(step) {
  const names = { prompt: "prompt", tool: "what the tools said", model: `turn ${step.turn}` };
  const weights = step.version === null ? "" : ` · weights ${step.version}`;
  const view = element("section", `step ${step.kind}`,
    element("p", "faint", `${names[step.kind]} · ${plural(step.texts.length, "token")}${weights}`),
    element("div", "tokens", ...step.texts.map((text, index) => tokenView(step, text, index))),
    ...step.calls.map(cell));
  return view;
}

function tokenView(step, text, index) {
  const logprob = step.kind === "model" ? step.logprobs[index] : null;
  const view = element("span", "", text);
  const likely = logprob === null ? (step.kind === "model" ? "its log-probability is no number" : "not sampled") :
    `log-probability ${logprob.toFixed(4)}, probability ${(100 * Math.exp(logprob)).toFixed(1)}%`;
  view.title = `token ${index}, id ${step.ids[index]}: ${JSON.stringify(text)}\n${likely}`;
  view.style.background = background(step.kind, logprob);
  return view;
}

function cell(call) {
  const line = (name, text) => text === "" ? null :
    element("div", name, element("label", "", name), element("pre", "", text));
  const took = `${call.seconds} s, ${call.mebibytes} MiB${call.reason ? ` · ${call.reason}` : ""}`;
  const status = element("div", "", element("label", "", "status"), element("span", "status",
    element("span", call.failed ? "failed" : "succeeded", call.status), ` · ${took}`));
  return element("div", "cell", line("code", call.code), line("input", call.input), line("stdout", call.stdout),
    line("stderr", call.stderr), status);
}

function showGroup() {
  const group = byGroup.get(current.group);
  const right = group.filter((trajectory) => trajectory.correct).length;
  place("group").replaceChildren(
    element("h2", "", "The group"),
    element("p", "faint", `${plural(group.length, "rollout")} of this problem, ${right} right`),
    ...group.map(sibling));
}

function sibling(trajectory) {
  const calls = trajectory.steps.flatMap((step) => step.calls);
  const answer = trajectory.extracted ? `answer ${trajectory.extracted}` : "no answer";
  const view = element("button", "sibling", badge(trajectory), `rollout ${trajectory.sample}: ${answer}`,
    element("small", "", counts(trajectory) + (trajectory.selected ? "" : " · not selected")),
    ...calls.map((call) => element("pre", call.failed ? "bad" : "", call.code)));
  view.setAttribute("aria-current", String(trajectory === current));
  view.addEventListener("click", () => open(trajectory));
  return view;
}

function openFromAddress() {
  const id = decodeURIComponent(location.hash.slice(1));
  const chosen = data.trajectories.find((trajectory) => trajectory.id === id) ?? shown()[0];
  if (chosen) open(chosen);
}

place("note").textContent = data.note;
for (const name of Object.keys(SORTS)) place("sort").append(element("option", "", name));
for (const id of ["filter", "verdict", "sort"]) place(id).addEventListener("input", showList);
window.addEventListener("hashchange", openFromAddress);
showList();
openFromAddress();
