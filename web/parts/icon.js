/** Small drawings in the current text colour. Each state has a shape of its own, so colour is never the only sign. */

import { html } from "../vendor/htm/standalone.module.js";

const OCTAGON = "M5.2 1h5.6L15 5.2v5.6L10.8 15H5.2L1 10.8V5.2z";
const RING = "M8 2.2a5.8 5.8 0 1 0 .01 0z";

/** Name → paths in a 16 × 16 box, each with how it is drawn: fill, knock (a line in the ground's colour), line, bold. */
const SHAPES = {
  idle: { line: RING },
  busy: { fill: "M4 2.5v11L13.5 8z" },
  long_prefill: { fill: "M3 1h10v3.5L9.5 8l3.5 3.5V15H3v-3.5L6.5 8 3 4.5z" },
  stalled: { fill: OCTAGON, knock: "M6.2 5v6M9.8 5v6" },
  dead: { bold: "M3 3l10 10M13 3L3 13" },
  unknown: { line: "M5.2 5.7a2.8 2.8 0 1 1 4.3 2.4c-1.1.7-1.5 1.2-1.5 2.2M8 12.9v.4" },
  critical: { fill: OCTAGON, knock: "M8 4.2v4.6M8 11.3v.5" },
  warning: { fill: "M8 1l7.5 13.5H.5z", knock: "M8 6v4M8 12.1v.4" },
  info: { fill: "M8 1a7 7 0 1 0 .01 0z", knock: "M8 7.2v4.3M8 4.2v.5" },
  none: { line: RING },
  ok: { bold: "M2.5 8.5l3.7 3.7L13.5 4" },
  offline: { bold: "M2 2l12 12M3.5 8a6.5 6.5 0 0 1 3-2M12.5 8a6.5 6.5 0 0 0-2.5-1.8M8 12.5v.3" },
  auto: { line: RING, fill: "M8 2.2a5.8 5.8 0 0 1 0 11.6z" },
  light: {
    fill: "M8 4.8a3.2 3.2 0 1 0 .01 0z",
    line: "M8 .8v2M8 13.2v2M.8 8h2M13.2 8h2M2.9 2.9l1.4 1.4M11.7 11.7l1.4 1.4M13.1 2.9l-1.4 1.4M4.3 11.7l-1.4 1.4",
  },
  dark: { fill: "M13.5 10A6 6 0 0 1 6 2.5 6 6 0 1 0 13.5 10z" },
};

/** @param {{name: keyof typeof SHAPES}} props */
export function Icon({ name }) {
  return html`<svg class="icon" viewBox="0 0 16 16" width="14" height="14" aria-hidden="true">
    ${Object.entries(SHAPES[name] ?? SHAPES.unknown).map(([how, d]) => html`<path class=${how} d=${d} />`)}
  </svg>`;
}
