/** Any PromQL: a chart, a table, and the API's own words where it objects. */

import { queryRange } from "../api.js";
import { formatMoment, formatNumber, formatValue, plural } from "../format.js";
import { usePoll } from "../hooks.js";
import { now } from "../api.js";
import { Chart } from "../parts/chart.js";
import { RangePicker } from "../parts/range_picker.js";
import { boundsOf, rangeOf, rangeParams, spanOf, stepFor } from "../ranges.js";
import { href } from "../route.js";
import { SeriesWindow, labelText } from "../series_window.js";
import { html, useEffect, useState } from "../vendor/htm/standalone.module.js";

const POINTS = 300;
const DRAWN = 24;
const LISTED = 200;
const DEFAULT = { spanMs: 3600e3 };
const EXAMPLES = [
  "sum by (instance) (rate(llm_engine_tokens_output_total[1m]))",
  "histogram_quantile(0.99, sum by (instance, le) (rate(gen_ai_server_time_to_first_token_seconds_bucket[5m])))",
  "topk(3, llm_engine_requests_waiting)",
  "up == 0",
];

/** @param {{params: URLSearchParams}} props */
export function QueryView({ params }) {
  const expr = params.get("expr") ?? "";
  const range = rangeOf(params, DEFAULT);
  const [text, setText] = useState(expr);
  useEffect(() => setText(expr), [expr]);
  const step = stepFor(spanOf(range), POINTS);
  const live = !("fromMs" in range);
  const inputs = [expr, step, live ? range.spanMs : `${range.fromMs}-${range.toMs}`];
  const poll = usePoll(load, live && expr ? Math.max(5000, step) : null, inputs);
  const current = poll.data?.inputs === inputs.join() ? poll.data.window : null;

  /** @param {AbortSignal} signal */
  async function load(signal) {
    const window = new SeriesWindow(spanOf(range), step);
    const plan = window.plan(Math.min(boundsOf(range, now())[1], now()));
    if (expr) window.merge(plan, new Map([["", await queryRange(expr, plan.firstMs, plan.endMs, step, signal)]]));
    return { window, inputs: inputs.join() };
  }
  const show = (/** @type {string} */ nextExpr, /** @type {import("../ranges.js").Range} */ nextRange) => {
    const next = href("query", "", { expr: nextExpr, ...rangeParams(nextRange) });
    if (next === location.hash) poll.again();
    location.hash = next;
  };
  /** @param {Event} event */
  function submit(event) {
    event.preventDefault();
    show(text.trim(), range);
  }
  /** @param {KeyboardEvent} event Enter runs, Shift+Enter makes a new line */
  function onKeyDown(event) {
    if (event.key === "Enter" && !event.shiftKey) submit(event);
  }

  return html`
    <h1>Query</h1>
    <form class="query" onSubmit=${submit}>
      <label for="expr">PromQL</label>
      <textarea
        id="expr"
        class="mono"
        rows="2"
        spellcheck="false"
        autocomplete="off"
        value=${text}
        onInput=${(/** @type {any} */ e) => setText(e.target.value)}
        onKeyDown=${onKeyDown}
      ></textarea>
      <button type="submit">Run</button>
    </form>
    <${RangePicker} range=${range} onChange=${(/** @type {import("../ranges.js").Range} */ r) => show(expr, r)} />
    ${poll.error && html`<p class="problem" role="alert">${poll.error.message}</p>`}
    ${!expr && html`<${Examples} range=${range} />`}
    ${expr && !current && !poll.error && html`<p class="quiet">running…</p>`}
    ${expr && current && !poll.error && html`<${Result} window=${current} range=${range} step=${step} onZoom=${(from, to) => show(expr, { fromMs: from, toMs: to })} />`}
  `;
}

function Examples({ range }) {
  return html`<ul class="examples" aria-label="Examples">
    ${EXAMPLES.map((e) => html`<li><a class="mono" href=${href("query", "", { expr: e, ...rangeParams(range) })}>${e}</a></li>`)}
  </ul>`;
}

function Result({ window, range, step, onZoom }) {
  const rows = window.all("");
  const lines = rows.map(({ labels, values }, i) => ({
    label: labelText(labels),
    tone: `c${(i % 8) + 1}`,
    dash: i < 8 ? [] : [4 + 2 * Math.floor(i / 8), 3],
    values,
  }));
  const { times } = window;
  const bounds = "fromMs" in range ? boundsOf(range, 0) : [times[0] * 1000, times[times.length - 1] * 1000];
  return html`
    <${Chart}
      title=${`${plural(rows.length, "series").replace(/seriess$/, "series")}, step ${step / 1000} s`}
      unit=""
      fromZero=${false}
      lines=${lines.slice(0, DRAWN)}
      times=${times}
      bounds=${bounds}
      syncKey="query"
      onZoom=${onZoom}
      legend=${false}
      height=${260}
    />
    ${rows.length > DRAWN && html`<p class="quiet">The first ${DRAWN} of ${rows.length} series are drawn.</p>`}
    ${rows.length > 0 && html`<${Values} lines=${lines} times=${times} />`}
  `;
}

function Values({ lines, times }) {
  const newest = times[times.length - 1] * 1000;
  return html`<div class="scroll">
    <table class="values">
      <caption>Values at ${formatMoment(newest)}, and over the range</caption>
      <thead><tr><th>Series</th><th>Value</th><th>Lowest</th><th>Highest</th></tr></thead>
      <tbody>
        ${lines.slice(0, LISTED).map(({ label, tone, values }, i) => {
          const finite = values.filter((v) => Number.isFinite(v));
          const last = values[values.length - 1];
          return html`<tr>
            <th scope="row" class="mono">${i < DRAWN && html`<i class="swatch tone-${tone}"></i>`}${label}</th>
            <td>${Number.isNaN(last) ? "NaN" : formatValue(last)}</td>
            <td>${finite.length ? formatNumber(finite.reduce((a, b) => Math.min(a, b))) : formatValue(null)}</td>
            <td>${finite.length ? formatNumber(finite.reduce((a, b) => Math.max(a, b))) : formatValue(null)}</td>
          </tr>`;
        })}
      </tbody>
    </table>
    ${lines.length > LISTED && html`<p class="quiet">The first ${LISTED} of ${lines.length} series are listed.</p>`}
  </div>`;
}
