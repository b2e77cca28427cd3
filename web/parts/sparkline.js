/** A small line of the recent past, without axes; its text says the range. */

import { formatValue } from "../format.js";
import { fractionOf, heightsOf, linePath, topOf } from "../paths.js";
import { html } from "../vendor/htm/standalone.module.js";

const WIDTH = 120;
const HEIGHT = 26;
const ROOM = 2; // the line is wider than nothing, so it stays off the edges

/** @typedef {{label: string, tone: string, values: (number | null)[]}} SparkLine */

/**
 * @param {{title: string, unit: string, lines: SparkLine[], times: number[], max?: number,
 *   spans?: import("../incidents.js").Span[]}} props
 */
export function Sparkline({ title, unit, lines, times, max, spans = [] }) {
  const top = max ?? topOf(lines.map((l) => l.values));
  const parts = lines.map((l) => `${l.label} up to ${formatValue(topOf([l.values], -Infinity), unit)}`);
  return html`<svg
    class="sparkline"
    viewBox="0 0 ${WIDTH} ${HEIGHT}"
    preserveAspectRatio="none"
    role="img"
    aria-label="${title}, ${parts.join(", ")}"
  >
    ${spans.map((span) => {
      const [from, to] = fractionOf(span, times) ?? [0, 0];
      return html`<rect class="span severity-${span.severity}" x=${from * WIDTH} width=${(to - from) * WIDTH} height=${HEIGHT} />`;
    })}
    <path class="ground" d="M0 ${HEIGHT - 0.5}H${WIDTH}" />
    <g transform="translate(0 ${ROOM})">
      ${lines.map(({ tone, values }) => {
        const path = linePath(heightsOf(values, top), WIDTH, HEIGHT - 2 * ROOM);
        return html`<path class="line tone-${tone}" d=${path} />`;
      })}
    </g>
  </svg>`;
}
