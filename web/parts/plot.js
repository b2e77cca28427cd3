/** Options of a uPlot chart in the page's own look. */

import { axisTimes, formatTick } from "../format.js";
import uPlot from "../vendor/uplot/uPlot.esm.js";

/** @typedef {{label: string, tone: string, dash?: number[], values: (number | null)[], absent?: string}} ChartLine */
/**
 * @typedef {{unit: string, max?: number, fromZero: boolean, ownScales: boolean, bounds: [number, number],
 *   spans: import("../incidents.js").Span[], onZoom?: (fromMs: number, toMs: number) => void,
 *   onCursor: (index: number | null, left: number) => void}} PlotState read anew at each draw
 */

const probe = document.createElement("span");

/** A colour of the style sheet as the canvas wants it. @param {string} name without the two dashes */
function colour(name) {
  if (!probe.isConnected) document.body.append(Object.assign(probe, { hidden: true }));
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

/** Steps of an axis that counts things: there is no half a request. @param {string} unit */
function whole(unit) {
  const decades = [1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8];
  return unit === "requests" || unit === "{request}" ? { incrs: decades.flatMap((d) => [d, 2 * d, 5 * d]) } : {};
}

/** Cursors move together over charts of one key; a drag zooms only where it was made. @param {string} key */
function synchronised(key) {
  const filter = (/** @type {string} */ type) => type === "mousemove" || type === "mouseleave";
  return { key, filters: { pub: filter, sub: filter } };
}

/**
 * @param {{current: PlotState}} state @param {ChartLine[]} lines @param {{width: number, height: number, syncKey: string}} size
 */
export function plotOptions(state, lines, { width, height, syncKey }) {
  const font = `12px ${getComputedStyle(document.body).fontFamily}`;
  const scales = state.current.ownScales ? lines.map((_, i) => `y${i}`) : ["y"];
  const quiet = { stroke: () => colour("grid"), width: 1 };
  const axis = { stroke: () => colour("muted"), font, grid: quiet, ticks: { ...quiet, size: 4 } };
  return {
    width,
    height,
    padding: [8, 20, 0, 0],
    legend: { show: false },
    cursor: {
      sync: synchronised(syncKey),
      drag: { x: Boolean(state.current.onZoom), y: false, setScale: false, dist: 6 },
      points: { size: 6 },
      y: false,
    },
    scales: {
      x: { time: true, range: () => state.current.bounds.map((ms) => ms / 1000) },
      ...Object.fromEntries(scales.map((name) => [name, { range: (_, low, high) => rangeOf(state.current, low, high) }])),
    },
    axes: [
      { ...axis, space: 64, size: 36, values: (_, ticks, __, ___, step) => axisTimes(ticks, step) },
      {
        ...axis,
        ...whole(state.current.unit),
        scale: scales[0],
        size: 62,
        values: (_, ticks) => ticks.map((v) => (state.current.ownScales ? "" : formatTick(v, state.current.unit))),
      },
    ],
    series: [
      {},
      ...lines.map(({ label, tone, dash = [] }, i) => ({
        label,
        scale: scales[i % scales.length],
        stroke: () => colour(`tone-${tone}`),
        width: 1.6,
        dash,
        points: { show: false },
      })),
    ],
    hooks: {
      drawAxes: [(u) => drawSpans(u, state.current.spans)],
      setCursor: [(u) => state.current.onCursor(u.cursor.idx ?? null, u.cursor.left)],
      setSelect: [(u) => zoomed(u, state.current)],
    },
  };
}

/** @param {PlotState} state @param {number | null} low @param {number | null} high @returns {[number, number]} */
function rangeOf({ max, fromZero }, low, high) {
  if (max !== undefined) return [0, max];
  if (low === null || high === null) return [0, 1];
  if (fromZero && low >= 0) return [0, high > 0 ? high * 1.08 : 1];
  return low === high ? [low - 1, high + 1] : uPlot.rangeNum(low, high, 0.1, true);
}

/** Shade incidents over the grid, behind the lines. @param {any} u @param {import("../incidents.js").Span[]} spans */
function drawSpans(u, spans) {
  const { left, top, width, height } = u.bbox;
  for (const { fromMs, toMs, severity } of spans) {
    const from = Math.max(left, u.valToPos(fromMs / 1000, "x", true));
    const to = Math.min(left + width, u.valToPos(toMs / 1000, "x", true));
    if (to <= from) continue;
    u.ctx.save();
    u.ctx.fillStyle = colour(`severity-${severity}`);
    u.ctx.globalAlpha = 0.13;
    u.ctx.fillRect(from, top, to - from, height);
    u.ctx.globalAlpha = 0.9;
    u.ctx.fillRect(from, top, to - from, 2 * devicePixelRatio);
    u.ctx.restore();
  }
}

/** @param {any} u @param {PlotState} state */
function zoomed(u, { onZoom }) {
  const { left, width } = u.select;
  if (width < 6) return;
  const [from, to] = [u.posToVal(left, "x") * 1000, u.posToVal(left + width, "x") * 1000];
  u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  onZoom?.(from, to);
}
