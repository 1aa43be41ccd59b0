// Calls `show` for each page: the first one, those that htmx swaps in, and changed fragments.
const shows = [];

export function onShow(show) {
  shows.push(show);
  show(document.body);
}

export function shown(element) {
  for (const show of shows) show(element);
}

document.addEventListener("htmx:afterSettle", (event) => shown(event.detail.elt));
