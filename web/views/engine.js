/** One engine: what it is, and its charts over a chosen time. */

import { now } from "../api.js";
import { localTimes } from "../format.js";
import { useWidth } from "../hooks.js";
import { spansOf } from "../incidents.js";
import { Chart } from "../parts/chart.js";
import { EngineFacts, Simulated } from "../parts/engine_table.js";
import { IncidentRows } from "../parts/incident_card.js";
import { StatePill } from "../parts/pill.js";
import { RangePicker } from "../parts/range_picker.js";
import { Ago, Lasting } from "../parts/when.js";
import { boundsOf, rangeOf, rangeParams, rateWindow, spanOf, stepFor } from "../ranges.js";
import { href } from "../route.js";
import { useSeries } from "../series.js";
import { CHARTS, isDrawn, reasonFor, selectorOf } from "../signals.js";
import { html, useRef } from "../vendor/htm/standalone.module.js";

const PIXELS_PER_POINT = 2.5;
const DEFAULT = { spanMs: 15 * 60e3 };

/** @param {{instance: string, params: URLSearchParams, fleet: import("../app.js").Fleet}} props */
export function EngineView({ instance, params, fleet }) {
  const engine = fleet.engines.find((e) => e.instance === instance);
  const target = fleet.targets.find((t) => t.instance === instance);
  if (!engine) {
    return html`<h1 class="mono">${instance}</h1>
      <p class="problem" role="alert">No engine of this name is known. <a href=${href("")}>All engines</a></p>`;
  }
  const about = fleet.open.filter((i) => spansOf([i], instance, now()).length > 0);
  return html`
    <header class="page-head">
      <${StatePill} state=${engine.state} />
      <h1 class="mono">${instance}</h1>
      <${Simulated} engine=${engine} /> <${EngineFacts} engine=${engine} />
      <p class="reason">
        ${localTimes(engine.state_reason, now())}${engine.since_ms !== null && html` · for <${Lasting} sinceMs=${engine.since_ms} />`}
      </p>
    </header>
    ${about.length > 0 && html`<${IncidentRows} incidents=${about} />`}
    <${EngineCharts} engine=${engine} target=${target} params=${params} incidents=${[...fleet.open, ...fleet.resolved]} />
    <${Contract} engine=${engine} />
    <${Details} engine=${engine} target=${target} />
  `;
}

function EngineCharts({ engine, target, params, incidents }) {
  const { instance } = engine;
  const box = useRef(null);
  const width = useWidth(box);
  const range = rangeOf(params, DEFAULT);
  const columns = width > 900 ? 2 : 1;
  const step = stepFor(spanOf(range), Math.max(300, width) / columns / PIXELS_PER_POINT);
  const window = rateWindow(step, target?.interval_seconds ?? 0);
  const wanted = CHARTS.flatMap((panel) => panel.signals).filter((s) => width > 0 && !reasonFor(engine, s));
  const queries = wanted.map(({ key, expr }) => ({ key, expr: expr(selectorOf(instance), window) }));
  const series = useSeries([...new Map(queries.map((q) => [q.key, q])).values()], range, step);
  const { times } = series.window;
  const bounds = "fromMs" in range || times.length === 0 ? boundsOf(range, now()) : [times[0] * 1000, times[times.length - 1] * 1000];
  const show = (/** @type {import("../ranges.js").Range} */ next) => {
    location.hash = href("engine", instance, rangeParams(next));
  };
  return html`<section aria-label="Charts">
    <div class="range-row">
      <${RangePicker} range=${range} onChange=${show} />
      <p class="quiet range-help">drag across a chart to zoom, arrow keys read it</p>
    </div>
    <div class="charts" ref=${box}>
      ${CHARTS.filter((panel) => isDrawn(engine, panel)).map(
        (panel) => html`<${Chart}
          key=${panel.key}
          title=${panel.title}
          about=${panel.about}
          unit=${panel.unit}
          max=${panel.max}
          lines=${panel.signals.map((s) => ({
            label: s.label,
            tone: s.tone,
            dash: s.dash,
            values: series.window.of(s.key, instance),
            absent: reasonFor(engine, s),
          }))}
          times=${times}
          bounds=${bounds}
          spans=${spansOf(incidents, instance, now())}
          syncKey=${`engine ${instance}`}
          onZoom=${(/** @type {number} */ fromMs, /** @type {number} */ toMs) => show({ fromMs, toMs })}
          problem=${panel.signals.map((s) => series.errors.get(s.key)).find((e) => e)}
        />`,
      )}
    </div>
    <${NotDrawn} engine=${engine} />
  </section>`;
}

/** The panels that this engine cannot fill, each with the reason. */
function NotDrawn({ engine }) {
  const panels = CHARTS.filter((panel) => !isDrawn(engine, panel));
  if (panels.length === 0) return null;
  return html`<dl class="facts not-drawn">
    ${panels.map((panel) => {
      const reasons = new Set(panel.signals.map((signal) => reasonFor(engine, signal)));
      return html`<div><dt>${panel.title}</dt><dd>n/a: ${[...reasons].join("; ")}</dd></div>`;
    })}
  </dl>`;
}

const ODD = {
  contract_missing: "missing",
  contract_unknown: "unknown",
  contract_changed_type: "other type",
  contract_changed_buckets: "other buckets",
  contract_changed_meaning: "other meaning",
};

/** What the engine's exposition has not, or otherwise, by what its release promises. */
function Contract({ engine }) {
  if (engine.contract.length === 0) return null;
  return html`<section aria-labelledby="contract-title">
    <h2 id="contract-title">Metrics that are not as this release promises</h2>
    <dl class="facts contract">
      ${engine.contract.map(
        (odd) => html`<div><dt>${ODD[odd.kind] ?? odd.kind} · <span class="mono">${odd.family}</span></dt><dd>${odd.text}</dd></div>`,
      )}
    </dl>
  </section>`;
}

function Details({ engine, target }) {
  const facts = [
    ["engine", `${engine.engine} ${engine.version}`],
    ["model", engine.model],
    ["zone", engine.zone],
    ["job", engine.job],
    ["last progress", engine.last_progress_ms !== null && html`<${Ago} ms=${engine.last_progress_ms} />`],
    ["target", target?.url],
    ["found by", target?.discovered_by],
    ["last scrape", target?.last_scrape_ms && html`<${Ago} ms=${target.last_scrape_ms} />`],
    ["scrape", target && `every ${target.interval_seconds} s, ${target.samples ?? "no"} samples`],
    ["scrape error", target?.last_error],
  ];
  return html`<section aria-labelledby="details-title">
    <h2 id="details-title">Details</h2>
    <dl class="facts">
      ${facts
        .filter(([, value]) => value)
        .map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}
    </dl>
  </section>`;
}
