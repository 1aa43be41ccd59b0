// Live pages: an event for each fragment that changed, with the lines that changed.
import { onShow, shown } from "./page.js";
import { local } from "./times.js";

const LATE_MS = 5000;
const FOCUSABLE = "a, button, input, select, summary";
let stream = null;
let url = null;
let isPaused = false;
let lastMs = 0;
let everyMs = 1000;
let problem = "";
const texts = new Map();
const waiting = new Set(); // fragments that changed while in use
let held = null; // where a button of the mouse was pressed, while it is

function main() {
  return document.querySelector("main[data-live]");
}

function say(words, kind) {
  const place = document.querySelector("[data-live-state]");
  if (!place) return;
  place.dataset.kind = kind;
  let label = place.querySelector(".live-words");
  if (label.textContent !== words) label.textContent = words;
  if (!place.querySelector("button") && main()) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "quiet";
    button.dataset.livePause = "";
    place.append(button);
  }
  const button = place.querySelector("button");
  if (button) button.textContent = isPaused ? "Resume updates" : "Pause updates";
}

function state() {
  if (!main()) return;
  const late = Date.now() - lastMs;
  const isLate = !isPaused && lastMs > 0 && late > everyMs + LATE_MS;
  document.body.classList.toggle("stale", isLate || Boolean(problem));
  if (isPaused) say("paused", "off");
  else if (problem) say(problem, "bad");
  else if (lastMs && late > everyMs + LATE_MS) say(`last seen ${Math.round(late / 1000)} s ago, trying again`, "bad");
  else if (lastMs && everyMs > 1000) say(`slow: every ${everyMs / 1000} s, shown from ${local(new Date(lastMs))}`, "slow");
  else say("live", "good");
}

function textOf(name, patch) {
  if (typeof patch === "string") return patch;
  const before = texts.get(name).split("\n");
  return patch
    .flatMap((each) => (typeof each === "string" ? [each] : typeof each === "number" ? [before[each]] : before.slice(each[0], each[0] + each[1])))
    .join("\n");
}

function rowsOf(element) {
  return [...element.querySelectorAll("tbody tr")];
}

// What a row shows: its id, or where its first link leads.
function keyOf(row) {
  return row.id || row.querySelector("a")?.getAttribute("href") || "";
}

// Finds the same row again, or, if it is gone, the one that stands in its place.
function sameRow(element, { key, nth }) {
  const rows = rowsOf(element);
  return rows.find((row) => key && keyOf(row) === key) ?? rows[Math.min(nth, rows.length - 1)];
}

function placeOf(element, row) {
  return row && { key: keyOf(row), nth: rowsOf(element).indexOf(row) };
}

// Whether the reader types or selects in it, or zooms a chart.
function isInUse(element) {
  const active = document.activeElement;
  if (element.contains(active) && active.matches("input:not([type=checkbox]), select, textarea")) return true;
  const isSelecting = element.contains(document.getSelection()?.anchorNode) && !document.getSelection().isCollapsed;
  return isSelecting || element.contains(held);
}

// What is in use is shown at a later tick.
function show(name) {
  const element = document.getElementById(name);
  waiting.delete(name);
  if (element && isInUse(element)) waiting.add(name);
  else if (element) swap(element, texts.get(name));
}

// Swapping keeps what the reader did: focus, chosen rows, and open details.
function swap(element, html) {
  const active = document.activeElement;
  const holder = element.contains(active) ? active.closest("tbody tr, [id]") : null;
  const nth = holder ? [...holder.querySelectorAll(FOCUSABLE)].indexOf(active) : -1;
  const focusedRow = holder?.matches("tr") ? placeOf(element, holder) : null;
  const markedRow = placeOf(element, element.querySelector("tr.at"));
  const chosen = [...element.querySelectorAll("input:checked")].map((each) => each.id);
  const open = [...element.querySelectorAll("details[open]")].map((each) => each.id);
  element.innerHTML = html;
  for (const id of chosen) if (id) { const each = document.getElementById(id); if (each) each.checked = true; }
  for (const id of open) if (id) document.getElementById(id)?.setAttribute("open", "");
  if (markedRow) sameRow(element, markedRow)?.classList.add("at");
  const found = focusedRow ? sameRow(element, focusedRow) : holder && document.getElementById(holder.id);
  // In another row the same button would change what nobody chose: its link gets the focus.
  const isOther = focusedRow && found && keyOf(found) !== focusedRow.key;
  const target = isOther ? found.querySelector("a") : nth < 0 ? found : found?.querySelectorAll(FOCUSABLE)[nth];
  target?.focus({ preventScroll: true });
  window.htmx?.process(element);
  shown(element);
}

function close() {
  stream?.close();
  stream = null;
  texts.clear();
  waiting.clear();
}

// A refused stream is not opened again by itself.
async function retry(refused) {
  const { status } = await fetch(refused.url, { method: "HEAD" }).catch(() => ({}));
  if (refused === stream) status === 401 ? location.reload() : open();
}

function open() {
  const place = main();
  close();
  if (!place || isPaused || document.hidden) return;
  url = place.dataset.live;
  stream = new EventSource(url);
  stream.addEventListener("tick", (event) => {
    const tick = JSON.parse(event.data);
    lastMs = Date.now();
    everyMs = tick.every * 1000;
    problem = tick.problem ? `${tick.problem}; shown from ${local(new Date(tick.at * 1000))}` : "";
    for (const name of [...waiting]) show(name);
    state();
  });
  stream.addEventListener("full", (event) => { problem = JSON.parse(event.data); close(); state(); });
  stream.onopen = () => { texts.clear(); waiting.clear(); };
  stream.onerror = ({ target }) => { if (target.readyState === 2) setTimeout(retry, 2000, target); };
  for (const fragment of place.querySelectorAll("[data-fragment]")) {
    const name = fragment.id;
    stream.addEventListener(name, (event) => {
      texts.set(name, textOf(name, JSON.parse(event.data)));
      show(name);
    });
  }
}

onShow(() => {
  if (main()?.dataset.live === url && stream) return;
  problem = "";
  lastMs = main() ? Date.now() : 0;
  url = null;
  open();
  state();
});

export function togglePause() {
  if (!main()) return;
  isPaused = !isPaused;
  if (isPaused) close();
  else { lastMs = Date.now(); open(); }
  state();
}

document.addEventListener("click", (event) => {
  if (event.target.closest("[data-live-pause]")) togglePause();
});
document.addEventListener("pointerdown", (event) => { held = event.target; });
for (const end of ["pointerup", "pointercancel"]) document.addEventListener(end, () => { held = null; });
document.addEventListener("visibilitychange", () => {
  held = null;
  if (document.hidden) close();
  else { lastMs = Date.now(); open(); }
});
setInterval(() => { if (!document.hidden) state(); }, 1000);
