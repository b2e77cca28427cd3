/** Chooses a time range: presets that move on with the clock, or from/to in local time with UTC beside it. */

import { now } from "../api.js";
import { formatMoment } from "../format.js";
import { PRESETS, boundsOf, fromField, toField } from "../ranges.js";
import { html, useEffect, useState } from "../vendor/htm/standalone.module.js";

/** @typedef {import("../ranges.js").Range} Range */

/** @param {{range: Range, onChange: (range: Range) => void}} props */
export function RangePicker({ range, onChange }) {
  const fixed = "fromMs" in range;
  const [open, setOpen] = useState(false);
  return html`<div class="range">
    <div class="range-presets" role="group" aria-label="Time range">
      ${PRESETS.map(
        ([name, spanMs]) => html`<button
          type="button"
          aria-pressed=${!fixed && range.spanMs === spanMs}
          onClick=${() => onChange({ spanMs })}
        >
          ${name}
        </button>`,
      )}
      <button type="button" aria-pressed=${fixed} aria-expanded=${open} onClick=${() => setOpen(!open)}>custom</button>
    </div>
    ${fixed && html`<p class="range-fixed">${formatMoment(range.fromMs)} – ${formatMoment(range.toMs)}</p>`}
    ${open && html`<${CustomRange} range=${range} onChange=${onChange} />`}
  </div>`;
}

function CustomRange({ range, onChange }) {
  const [fields, setFields] = useState(() => boundsOf(range, now()).map(toField));
  const moves = "fromMs" in range ? `${range.fromMs}-${range.toMs}` : `${range.spanMs}`;
  useEffect(() => setFields(boundsOf(range, now()).map(toField)), [moves]);
  const [fromMs, toMs] = fields.map(fromField);
  const problem = !(fromMs && toMs) ? "Give both times." : toMs <= fromMs ? "The end must be after the start." : "";
  function apply(/** @type {Event} */ event) {
    event.preventDefault();
    if (!problem) onChange({ fromMs, toMs });
  }
  const field = (/** @type {string} */ label, /** @type {number} */ i, /** @type {number} */ ms) => html`<label>
    ${label}
    <input
      type="datetime-local"
      step="1"
      value=${fields[i]}
      onInput=${(/** @type {any} */ e) => setFields(fields.map((f, at) => (at === i ? e.target.value : f)))}
    />
    <small>${ms ? formatMoment(ms) : "–"}</small>
  </label>`;
  return html`<form class="range-custom" onSubmit=${apply}>
    ${field("From", 0, fromMs)} ${field("To", 1, toMs)}
    <button type="submit" disabled=${problem !== ""}>Show</button>
    ${problem && html`<p role="alert">${problem}</p>`}
  </form>`;
}
