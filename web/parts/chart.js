/** A chart with title, live legend and tooltip around uPlot. */

import { formatClock, formatDate, formatTick, formatValue, titleUnit } from "../format.js";
import { useThemeChange, useWidth } from "../hooks.js";
import { topOf } from "../paths.js";
import uPlot from "../vendor/uplot/uPlot.esm.js";
import { html, useEffect, useRef, useState } from "../vendor/htm/standalone.module.js";
import { Hint } from "./hint.js";
import { plotOptions } from "./plot.js";

/** @typedef {import("./plot.js").ChartLine} ChartLine */

const TOOLTIP_ROWS = 8;

/**
 * @param {{title: string, about?: string, unit: string, max?: number, fromZero?: boolean, ownScales?: boolean, lines: ChartLine[],
 *   times: number[], bounds: [number, number], spans?: import("../incidents.js").Span[], syncKey: string,
 *   onZoom?: (fromMs: number, toMs: number) => void, problem?: string, height?: number, legend?: boolean}} props
 *   `times` in epoch seconds, `bounds` in ms; `problem` is written over the plot;
 *   with `ownScales` each line fills the height, which compares shapes and not values
 */
export function Chart(props) {
  const { title, about, lines, times, legend = true } = props;
  const [cursor, setCursor] = useState({ index: null, left: 0 });
  const [active, setActive] = useState(false);
  const drawn = lines.filter((line) => !line.absent);
  const box = useRef(null);
  const plot = usePlot(box, { ...props, lines: drawn }, (index, left) =>
    setCursor((c) => (c.index === index && c.left === left ? c : { index, left })),
  );
  const index = cursor.index ?? times.length - 1;

  /** @param {KeyboardEvent} event */
  function onKeyDown(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity, Escape: NaN }[event.key];
    if (step === undefined || !plot.current) return;
    event.preventDefault();
    const at = Math.min(times.length - 1, Math.max(0, index + step));
    const left = Number.isNaN(at) ? -10 : plot.current.valToPos(times[at], "x");
    plot.current.setCursor({ left, top: Number.isNaN(at) ? -10 : 8 }, true, true);
  }

  return html`<figure class="chart">
    <figcaption>
      <h3 title=${about}>${title} <small>${legend && titleUnit(props.unit)}</small></h3>
      ${legend && html`<${Legend} lines=${lines} index=${index} unit=${props.unit} />`}
    </figcaption>
    <div
      class="plot"
      tabindex="0"
      role="img"
      aria-label=${summary(props)}
      onKeyDown=${onKeyDown}
      onMouseEnter=${() => setActive(true)}
      onMouseLeave=${() => setActive(false)}
      onFocus=${() => setActive(true)}
      onBlur=${() => setActive(false)}
    >
      <div ref=${box}></div>
      ${active && cursor.index !== null && html`<${Tooltip} ...${{ lines: drawn, times, unit: props.unit, cursor, plot }} />`}
    </div>
    ${problemOf(props, drawn)}
  </figure>`;
}

/** Creates the plot when its lines change, feeds it when only the data does. */
function usePlot(box, props, onCursor) {
  const { unit, max, fromZero = true, ownScales = false, lines, times, bounds, spans = [], syncKey, onZoom, height = 190 } = props;
  const width = useWidth(box);
  const plot = useRef(null);
  const state = useRef(null);
  state.current = { unit, max, fromZero, ownScales, bounds, spans, onZoom, onCursor };
  const data = [times, ...lines.map((line) => line.values.map((v) => (Number.isFinite(v) ? v : null)))];
  const shape = lines.map((l) => `${l.label}/${l.tone}`).join("\n");
  useEffect(() => {
    if (width <= 0) return undefined;
    plot.current = new uPlot(plotOptions(state, lines, { width, height, syncKey }), data, box.current);
    return () => {
      plot.current.destroy();
      plot.current = null;
    };
  }, [width > 0, shape, unit, ownScales, syncKey, height]);
  useEffect(() => plot.current?.setSize({ width, height }), [width]);
  useEffect(() => plot.current?.setData(data), [times, ...bounds, spans.length, ...lines.map((l) => l.values)]);
  useThemeChange(() => plot.current?.redraw());
  return plot;
}

/** @param {{lines: ChartLine[], index: number, unit: string}} props values at `index` */
function Legend({ lines, index, unit }) {
  return html`<ul class="legend">
    ${lines.map(
      ({ label, tone, values, absent }) => html`<li>
        <i class="swatch tone-${tone}"></i>${label}${" "}
        ${absent ? html`<${Hint} text="n/a" reason=${absent} />` : html`<b>${formatTick(values[index], unit)}</b>`}
      </li>`,
    )}
  </ul>`;
}

function Tooltip({ lines, times, unit, cursor, plot }) {
  const u = plot.current;
  if (!u) return null;
  const ms = times[cursor.index] * 1000;
  const left = cursor.left + u.over.offsetLeft;
  const side = left > u.width / 2 ? { right: `${u.width - left + 12}px` } : { left: `${left + 12}px` };
  const shown = lines.slice(0, TOOLTIP_ROWS);
  return html`<div class="tooltip" style=${side}>
    <div class="tooltip-time">${formatDate(ms)} <b>${formatClock(ms)}</b> · ${formatClock(ms, true)} UTC</div>
    ${shown.map(
      ({ label, tone, values }) => html`<div>
        <i class="swatch tone-${tone}"></i><span>${label}</span><b>${formatValue(values[cursor.index], unit)}</b>
      </div>`,
    )}
    ${lines.length > shown.length && html`<div>and ${lines.length - shown.length} more</div>`}
  </div>`;
}

/** What stands over an empty plot. @param {{problem?: string, times: number[]}} props @param {ChartLine[]} drawn */
function problemOf({ problem, times }, drawn) {
  if (problem) return html`<p class="over-plot">${problem}</p>`;
  const empty = drawn.every((line) => line.values.every((v) => !Number.isFinite(v)));
  if (times.length === 0) return html`<p class="over-plot">loading…</p>`;
  return empty && html`<p class="over-plot">no samples in this range</p>`;
}

/** The chart in words, for those who do not see it. */
function summary({ title, lines, unit, times }) {
  const facts = lines.map(({ label, values, absent }) => {
    if (absent) return `${label} not available: ${absent}`;
    const last = formatValue(values[times.length - 1], unit);
    return `${label} ${last}, highest ${formatValue(topOf([values], -Infinity), unit)}`;
  });
  return `${title}. ${facts.join("; ")}`;
}
