// The theme and the help dialog.
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

document.addEventListener("click", (event) => {
  if (event.target.closest("[data-theme-switch]")) toggleTheme();
  if (event.target.closest("[data-help]")) showHelp();
});
