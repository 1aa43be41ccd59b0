// Charts by uPlot: drag to zoom, double-click to zoom out. A zoom is in the URL.
import { onShow } from "./page.js";

const HEIGHT = 132;
const NAME = 28; // characters of a mark's name
const MARK = 18; // pixels above a plot
const SPANS = [0.001, 0.005, 0.02, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 21600, 86400, 172800, 604800, 2592000];
const plots = new Map();

function resolved(name) {
  const probe = document.createElement("i");
  probe.className = `probe ${name}`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

// With two digits that count: what happens once in ten minutes is no 0.
function amount(value, unit) {
  if (value == null) return "–";
  const isTime = unit === "s";
  for (const [name, size] of isTime ? [["d", 86400], ["h", 3600], ["min", 60]] : [["G", 1e9], ["M", 1e6], ["k", 1e3]]) if (value >= (name === "k" ? 10 : isTime ? 2 : 1) * size) return `${+(value / size).toFixed(1)} ${name}`;
  if (isTime && value && value < 1) return `${+(value * 1000).toPrecision(2)} ms`;
  return (value < 10 ? +value.toPrecision(2) : +value.toFixed(1)) + (isTime ? " s" : "");
}

function day(at) {
  return new Date(at * 1000).toLocaleDateString(undefined, { month: "short", day: "numeric" });
}

function time(at, timeStyle) {
  return new Date(at * 1000).toLocaleTimeString(undefined, { timeStyle, hourCycle: "h23" });
}

function clock(at, seconds) {
  return seconds > 2 * 86400 ? day(at) : time(at, seconds < 300 ? "medium" : "short");
}

function moment(at, x) {
  return `${x.at(-1) - x[0] > 86400 ? day(at) : ""} ${time(at, "medium")}`;
}

function marks(list, ink) {
  return (plot) => {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = ink;
    ctx.fillStyle = ink;
    ctx.setLineDash([4, 4]);
    ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
    for (const { at, name: whole } of list) {
      const name = whole.length > NAME ? `${whole.slice(0, NAME - 1)}…` : whole;
      const x = plot.valToPos(at, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      const isLeft = x + ctx.measureText(name).width > bbox.left + bbox.width;
      ctx.textAlign = isLeft ? "right" : "left";
      ctx.fillText(name, x, bbox.top - 4 * devicePixelRatio);
    }
    ctx.restore();
  };
}

const SHORTEST = 10;
let leaving;

// Charts that follow are selected, too, and ask again.
function show(start, end) {
  const url = new URL(location);
  if (start == null && !url.searchParams.has("from")) return;
  for (const [name, value] of [["from", start], ["to", end]]) {
    if (value == null) url.searchParams.delete(name);
    else url.searchParams.set(name, value);
  }
  clearTimeout(leaving);
  leaving = setTimeout(() => location.assign(url));
}

function zoom(plot) {
  const { left, width } = plot.select;
  if (width < 5) return;
  const start = Math.floor(plot.posToVal(left, "x"));
  show(start, Math.max(Math.ceil(plot.posToVal(left + width, "x")), start + SHORTEST));
}

function draw(figure) {
  const place = figure.querySelector(".plot");
  const { x, y, names, unit, marks: list } = JSON.parse(figure.dataset.chart);
  const muted = resolved("muted"), line = resolved("line");
  const inks = [resolved("accent"), resolved("second")];
  const width = place.clientWidth, now = x[0] ?? Date.now() / 1000;
  if (!width || !window.uPlot) return;
  place.replaceChildren();
  const axis = { stroke: muted, font: "12px system-ui, sans-serif", ticks: { show: false }, grid: { stroke: line, width: 1 } };
  const options = {
    width,
    height: HEIGHT + (list.length ? MARK : 0),
    padding: [list.length ? MARK : null, null, null, null],
    cursor: { sync: { key: "charts" }, drag: { setScale: false }, points: { size: 6 }, y: false },
    legend: { show: true, live: true },
    scales: {
      x: { range: () => (x.at(-1) > x[0] ? [x[0], Math.max(x.at(-1), ...list.map((each) => each.at))] : [now - 3600, now]) },
      y: { range: (_, low, high) => [0, high > 0 ? high * 1.05 : 1] },
    },
    axes: [
      { ...axis, grid: { show: false }, size: 24, space: 70, values: (plot, values) => values.map((at) => clock(at, plot.scales.x.max - plot.scales.x.min)) },
      { ...axis, size: 52, space: 30, ...(unit === "s" ? { incrs: SPANS } : {}), values: (_, values) => values.map((value) => amount(value, unit)) },
    ],
    series: [
      { label: "at", value: (_, at) => (x.length ? moment(at ?? x.at(-1), x) : "–") },
      ...names.map((name, n) => ({
        label: name,
        stroke: inks[n],
        width: 1.5,
        dash: n ? [5, 3] : undefined,
        fill: n || names.length > 1 ? undefined : inks[n].replace("rgb(", "rgba(").replace(")", ", 0.1)"),
        points: { show: x.length < 3 },
        value: (plot, value, series, at) => amount(at == null ? plot.data[series].at(-1) : value, unit),
      })),
    ],
    hooks: {
      draw: [marks(list, muted)],
      setSelect: [zoom],
      ready: [(plot) => plot.over.addEventListener("dblclick", () => show(null, null))],
    },
  };
  plots.set(place, new window.uPlot(options, [x, ...y], place));
}

function drawAll(element) {
  for (const [place, plot] of plots) if (!place.isConnected) { plot.destroy(); plots.delete(place); }
  for (const figure of element.querySelectorAll("[data-chart]")) draw(figure);
}

onShow(drawAll);
document.addEventListener("themechange", () => drawAll(document.body));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll(document.body));
let pending = 0;
addEventListener("resize", () => { clearTimeout(pending); pending = setTimeout(() => drawAll(document.body), 150); });
