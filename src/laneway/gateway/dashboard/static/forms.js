import { onShow } from "./page.js";

// Fragments are the same for all sessions, so their forms get the session's token here.
document.addEventListener("submit", (event) => {
  const field = event.target.elements?.namedItem("csrf");
  const token = document.querySelector("meta[name=csrf]")?.content;
  if (field && !field.value && token) field.value = token;
}, true);

// Choosing all rows.
document.addEventListener("change", (event) => {
  if (!event.target.matches("[data-choose-all]")) return;
  for (const box of event.target.closest("table").querySelectorAll("tbody input[type=checkbox]")) box.checked = event.target.checked;
});

// A link to a field opens the form that it is in. Elsewhere the browser has moved the focus itself:
// its event comes later, when the reader may have tabbed on.
function reveal() {
  const found = document.getElementById(location.hash.slice(1));
  const closed = found?.closest("details:not([open])");
  if (!closed) return;
  closed.setAttribute("open", "");
  found.focus();
}
addEventListener("hashchange", reveal);
onShow((element) => { if (element === document.body || element.id === "main") reveal(); });

// After a search the keys are for the rows, not for the field.
document.addEventListener("submit", (event) => {
  if (event.target.method === "get") document.activeElement?.blur();
});
