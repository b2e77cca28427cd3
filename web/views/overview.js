/** The first view: what is wrong now, then every engine, then what was wrong lately. */

import { formatSpan, plural } from "../format.js";
import { byEnd, byUrgency } from "../incidents.js";
import { EmptyFleet, SilentTargets } from "../parts/empty.js";
import { EngineTable } from "../parts/engine_table.js";
import { IncidentCard, IncidentRows } from "../parts/incident_card.js";
import { StatePill } from "../parts/pill.js";
import { rateWindow } from "../ranges.js";
import { href } from "../route.js";
import { useSeries } from "../series.js";
import { COLUMNS } from "../signals.js";
import { html } from "../vendor/htm/standalone.module.js";

const SPAN_MS = 15 * 60e3;
const FULL_CARDS = 3;
const RESOLVED_ROWS = 5;
const MANY_ENGINES = 40;
const LEAST_POINTS = 36;

/** @param {{fleet: import("../app.js").Fleet, status: any}} props */
export function Overview({ fleet, status }) {
  const { engines, open, resolved, targets, problems } = fleet;
  const step = engines.length > MANY_ENGINES ? 15_000 : 5000;
  const slowest = Math.max(0, ...targets.map((t) => t.interval_seconds ?? 0));
  const whole = useSeries(
    COLUMNS.flatMap((panel) => panel.signals).map(({ key, expr }) => ({ key, expr: expr("", rateWindow(step, slowest)) })),
    { spanMs: SPAN_MS },
    step,
  );
  const series = { ...whole, window: whole.window.trimmed(LEAST_POINTS) };
  const urgent = byUrgency(open);
  return html`
    <h1 class="visually-hidden">Overview</h1>
    ${urgent.length > 0 &&
    html`<section aria-labelledby="open-title">
      <h2 id="open-title">Open incidents</h2>
      ${urgent.slice(0, FULL_CARDS).map((incident) => html`<${IncidentCard} key=${incident.id} incident=${incident} />`)}
      ${urgent.length > FULL_CARDS && html`<${IncidentRows} incidents=${urgent.slice(FULL_CARDS)} />`}
    </section>`}
    ${engines.length === 0
      ? html`<${EmptyFleet} targets=${targets} problems=${problems} status=${status} />`
      : html`<section aria-labelledby="engines-title">
          <h2 id="engines-title">Engines <${Tally} engines=${engines} times=${series.window.times} /></h2>
          <${EngineTable} engines=${engines} open=${open} series=${series} />
          <${SilentTargets} targets=${targets} problems=${problems} engines=${engines} />
        </section>`}
    ${resolved.length > 0 &&
    html`<section aria-labelledby="resolved-title">
      <h2 id="resolved-title">Recently resolved</h2>
      <${IncidentRows} incidents=${byEnd(resolved).slice(0, RESOLVED_ROWS)} />
      ${resolved.length > RESOLVED_ROWS && html`<p><a href=${href("incidents")}>all incidents</a></p>`}
    </section>`}
  `;
}

/** "5 engines: 1 stalled, 4 busy". */
function Tally({ engines, times }) {
  const counts = new Map();
  for (const { state } of engines) counts.set(state, (counts.get(state) ?? 0) + 1);
  const order = ["stalled", "dead", "unknown", "long_prefill", "busy", "idle"].filter((state) => counts.has(state));
  return html`<span class="tally">
    <span>${plural(engines.length, "engine")}</span>
    ${order.map((state) => html`<span>${counts.get(state)} <${StatePill} state=${state} /></span>`)}
    ${times.length > 0 && html`<span>lines: last ${formatSpan(minutes(times) * 60e3)}</span>`}
  </span>`;
}

/** What the sparklines span, to the minute. @param {number[]} times epoch seconds */
function minutes(times) {
  return Math.max(1, Math.round((times[times.length - 1] - times[0]) / 60));
}
