// Keys: the table of the help dialog.
import { togglePause } from "./live.js";
import { showHelp, toggleTheme } from "./switches.js";

let isGoing = false, forgetting = 0;

function move(step) {
  const rows = [...document.querySelectorAll("main table tbody tr")];
  if (!rows.length) return;
  const at = rows.findIndex((row) => row.classList.contains("at"));
  rows[at]?.classList.remove("at");
  const next = rows[Math.min(rows.length - 1, Math.max(0, at < 0 ? 0 : at + step))];
  next.classList.add("at");
  next.querySelector("a")?.focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
}

const KEYS = {
  "?": showHelp,
  "/": () => document.getElementById("find")?.focus(),
  j: () => move(1),
  k: () => move(-1),
  Enter: () => document.querySelector("tr.at a")?.click(),
  p: togglePause,
  d: toggleTheme,
  t: () => document.querySelector("[data-table-link]")?.click(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  if (event.target.closest("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    // Enter in a checkbox would press its form's first button, such as "Pause".
    if (event.key === "Enter" && event.target.matches("[type=checkbox]")) event.preventDefault();
    return;
  }
  if (event.key === "Enter" && event.target.closest("a, button, summary")) return;
  if (isGoing) {
    isGoing = false;
    const link = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
    if (link) { link.click(); event.preventDefault(); }
    return;
  }
  if (event.key === "g") {
    isGoing = true;
    clearTimeout(forgetting); // of an earlier "g", which would end this one too soon
    forgetting = setTimeout(() => { isGoing = false; }, 1500);
    return;
  }
  const act = KEYS[event.key];
  if (act) { act(); event.preventDefault(); }
});
