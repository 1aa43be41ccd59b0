// The theme, the help dialog and the menu.
import { onShow } from "./page.js";

export function toggleTheme() {
  const root = document.documentElement;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  try { localStorage.setItem("laneway-theme", root.dataset.theme); } catch {}
  document.dispatchEvent(new Event("themechange"));
}

export function showHelp() {
  document.getElementById("help")?.showModal();
}

// In a narrow window the menu is a line that scrolls: the page's own entry is in view.
onShow(() => {
  const nav = document.querySelector(".side nav");
  const here = nav?.querySelector("[aria-current]");
  if (here && nav.scrollWidth > nav.clientWidth) nav.scrollLeft += here.getBoundingClientRect().left - nav.getBoundingClientRect().left - 16;
});

document.addEventListener("click", (event) => {
  if (event.target.closest("[data-theme-switch]")) toggleTheme();
  if (event.target.closest("[data-help]")) showHelp();
});
