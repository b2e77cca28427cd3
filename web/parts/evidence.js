/** The facts behind an alert: in words, as a value, and as a small line around the incident. */

import { formatValue, localTimes } from "../format.js";
import { beganAt, spanOf } from "../incidents.js";
import { around, stepFor } from "../ranges.js";
import { now } from "../api.js";
import { useSeries } from "../series.js";
import { html, useMemo } from "../vendor/htm/standalone.module.js";
import { Sparkline } from "./sparkline.js";

/** @typedef {import("../api.js").Evidence} Evidence */
/** @typedef {import("../incidents.js").Incident} Incident */

const POINTS = 90;
const REFRESH_MS = 15_000;

/** @param {{evidence: Evidence[], incident: Incident}} props */
export function EvidenceList({ evidence, incident }) {
  const range = useIncidentRange(incident);
  const step = stepFor("spanMs" in range ? range.spanMs : range.toMs - range.fromMs, POINTS);
  const drawn = evidence.map((e, i) => ({ key: String(i), expr: e.expr })).filter((q) => q.expr);
  const { window: whole, ready } = useSeries(drawn, range, step, REFRESH_MS);
  const window = whole.trimmed(POINTS / 3);
  return html`<ul class="evidence">
    ${evidence.map(({ text, value, unit }, i) => {
      const words = localTimes(text, now());
      const lines = window.all(String(i)).map(({ values }) => ({ label: text, tone: "high", values }));
      return html`<li>
        <span class="evidence-text">${words}</span>
        <b class="evidence-value">${valueBeside(words, value, unit)}</b>
        ${ready && lines.length > 0 && html`<${Sparkline}
          title=${text}
          unit=${drawnUnit(unit)}
          lines=${lines.slice(0, 4)}
          times=${window.times}
          spans=${[spanOf(incident, now())]}
        />`}
      </li>`;
    })}
  </ul>`;
}

/** The value, unless the words say it already or it is a bare number that says nothing. @param {string} words @param {number | null} value @param {string} unit */
export function valueBeside(words, value, unit) {
  const text = value === null || !unit ? "" : formatValue(value, unit);
  return words.includes(text.replace("\u00a0", " ")) ? "" : text;
}

/** Unit of the drawn series: a moment's own series are counts. @param {string} unit */
export function drawnUnit(unit) {
  return unit === "timestamp" ? "" : unit;
}

/** Time around an incident; goes on while it is open. @param {Incident} incident @returns {import("../ranges.js").Range} */
export function useIncidentRange(incident) {
  const { id, resolved_at_ms: end } = incident;
  return useMemo(() => {
    const [fromMs, toMs] = around(beganAt(incident), end ?? now());
    return end === null ? { spanMs: now() - fromMs } : { fromMs, toMs };
  }, [id, end]);
}
