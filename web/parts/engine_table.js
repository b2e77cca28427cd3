/** All engines: who they are, what they do, and the last quarter of an hour of what matters. */

import { formatValue, localTimes } from "../format.js";
import { now } from "../api.js";
import { byTrouble, spansOf } from "../incidents.js";
import { href } from "../route.js";
import { COLUMNS, reasonFor } from "../signals.js";
import { html } from "../vendor/htm/standalone.module.js";
import { Hint } from "./hint.js";
import { StatePill } from "./pill.js";
import { Sparkline } from "./sparkline.js";
import { Lasting } from "./when.js";

/** @typedef {import("../api.js").Engine} Engine */
/** @typedef {import("../series.js").SeriesState} SeriesState */

/** @param {{engines: Engine[], open: import("../incidents.js").Incident[], series: SeriesState}} props */
export function EngineTable({ engines, open, series }) {
  return html`<table class="engines" role="table">
    <thead role="rowgroup">
      <tr role="row">
        <th role="columnheader">Engine</th>
        <th role="columnheader">State</th>
        ${COLUMNS.map(({ title, about }) => html`<th role="columnheader" title=${about}>${title}</th>`)}
      </tr>
    </thead>
    <tbody role="rowgroup">
      ${byTrouble(engines).map(
        (engine) => html`<${EngineRow}
          key=${`${engine.job}/${engine.instance}/${engine.model}`}
          engine=${engine}
          spans=${spansOf(open, engine.instance, now())}
          series=${series}
        />`,
      )}
    </tbody>
  </table>`;
}

function EngineRow({ engine, spans, series }) {
  const { instance, state, state_reason: reason, since_ms: since } = engine;
  return html`<tr role="row" class="state-${state}" data-instance=${instance}>
    <th role="rowheader" scope="row">
      <a class="engine-name mono" href=${href("engine", instance)}>${instance}</a> <${Simulated} engine=${engine} />
      <${EngineFacts} engine=${engine} />
    </th>
    <td role="cell" class="engine-state">
      <${StatePill} state=${state} />
      ${since !== null && html`<span class="quiet"><${Lasting} sinceMs=${since} /></span>`}
      <span class="engine-reason">${localTimes(reason, now())}</span>
    </td>
    ${COLUMNS.map((panel) => html`<${SignalCell} engine=${engine} panel=${panel} spans=${spans} series=${series} />`)}
  </tr>`;
}

/** @param {{engine: Engine}} props */
export function EngineFacts({ engine }) {
  const { engine: kind, version, model, zone } = engine;
  return html`<span class="engine-facts">
    <span>${kind}${version && ` ${version}`}</span>
    <span class="model">${model}</span>
    ${zone && html`<span>${zone}</span>`}
  </span>`;
}

/** @param {{engine: Engine}} props */
export function Simulated({ engine }) {
  return engine.simulated && html`<span class="badge" title="a simulated engine, not a real one">simulated</span>`;
}

function SignalCell({ engine, panel, spans, series }) {
  const { title, unit, max, signals } = panel;
  const lines = signals.map((s) => ({
    label: s.label,
    tone: s.tone,
    values: series.window.of(s.key, engine.instance),
    missing: reasonFor(engine, s),
    error: series.errors.get(s.key),
  }));
  const drawn = lines.filter((l) => !l.missing && l.values.length > 0);
  return html`<td role="cell" class="signal" data-signal=${panel.key}>
    <span class="signal-title" aria-hidden="true">${title}</span>
    <span class="signal-values">
      ${lines.every((l) => l.missing)
        ? html`<${Hint} text="n/a" reason=${lines[0].missing} />`
        : lines.map(
            (l) => html`<span class="signal-value">
              ${lines.length > 1 && html`<small><i class="dash tone-${l.tone}"></i>${l.label}</small>${" "}`}${valueOf(l, unit, series)}
            </span>`,
          )}
    </span>
    ${drawn.length > 0 &&
    html`<${Sparkline} title=${title} unit=${unit} lines=${drawn} times=${series.window.times} max=${max} spans=${spans} />`}
  </td>`;
}

/**
 * The newest value, or why there is none.
 * @param {{values: (number | null)[], missing: string, error?: string}} line @param {string} unit @param {SeriesState} series
 */
function valueOf({ values, missing, error }, unit, series) {
  if (missing) return html`<${Hint} text="n/a" reason=${missing} />`;
  const last = values[values.length - 1];
  if (Number.isFinite(last)) return html`<b>${formatValue(last, unit, 2)}</b>`;
  if (!series.ready) return html`<span class="quiet">…</span>`;
  if (error) return html`<${Hint} text="failed" reason=${error} />`;
  const reason = Number.isNaN(last) ? "nothing to measure in the last minute" : "no sample in the last minutes";
  return html`<${Hint} text=${formatValue(null)} reason=${reason} />`;
}
