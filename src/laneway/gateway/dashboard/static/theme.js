// Before anything is painted: the theme that was chosen.
try { const theme = localStorage.getItem("laneway-theme"); if (theme) document.documentElement.dataset.theme = theme; } catch {}
