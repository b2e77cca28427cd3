/** Time ranges: what the picker offers, how they stand in the address, which step fits. Pure. */

/** @typedef {{spanMs: number} | {fromMs: number, toMs: number}} Range live (the last `spanMs`) or fixed */

/** @type {[string, number][]} */
export const PRESETS = [
  ["5m", 300e3],
  ["15m", 900e3],
  ["1h", 3600e3],
  ["6h", 6 * 3600e3],
  ["24h", 24 * 3600e3],
  ["7d", 7 * 86400e3],
];

const STEPS_SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400];

/** The range in a route's parameters, or `otherwise` where there is none. @param {URLSearchParams} params @param {Range} otherwise */
export function rangeOf(params, otherwise) {
  const preset = PRESETS.find(([name]) => name === params.get("range"));
  if (preset) return { spanMs: preset[1] };
  const [fromMs, toMs] = [Number(params.get("from")), Number(params.get("to"))];
  return fromMs > 0 && toMs > fromMs ? { fromMs, toMs } : otherwise;
}

/** @param {Range} range @returns {Record<string, string>} */
export function rangeParams(range) {
  if ("fromMs" in range) return { from: String(Math.round(range.fromMs)), to: String(Math.round(range.toMs)) };
  return { range: PRESETS.find(([, ms]) => ms === range.spanMs)?.[0] ?? "15m" };
}

/** @param {Range} range @param {number} nowMs @returns {[number, number]} from, to in ms */
export function boundsOf(range, nowMs) {
  return "fromMs" in range ? [range.fromMs, range.toMs] : [nowMs - range.spanMs, nowMs];
}

/** @param {Range} range */
export function spanOf(range) {
  return "fromMs" in range ? range.toMs - range.fromMs : range.spanMs;
}

/** Smallest round step with which `spanMs` takes at most `points` points. @param {number} spanMs @param {number} points */
export function stepFor(spanMs, points) {
  const least = spanMs / 1000 / Math.max(points, 10);
  const seconds = STEPS_SECONDS.find((s) => s >= least) ?? Math.ceil(least / 86400) * 86400;
  return seconds * 1000;
}

/**
 * Window for `rate()`: at least a minute, at least four scrapes, and never shorter than the step, or data between
 * two points would go unseen.
 * @param {number} stepMs @param {number} scrapeSeconds
 */
export function rateWindow(stepMs, scrapeSeconds) {
  return `${Math.ceil(Math.max(60, 4 * scrapeSeconds, stepMs / 1000))}s`;
}

/** An incident's span with room before and after it. @param {number} fromMs @param {number} toMs @returns {[number, number]} */
export function around(fromMs, toMs) {
  const room = Math.max(300e3, (toMs - fromMs) / 4);
  return [fromMs - room, toMs + room / 4];
}

/** Value of a datetime-local field, local time. @param {number} ms */
export function toField(ms) {
  const d = new Date(ms - new Date(ms).getTimezoneOffset() * 60e3);
  return d.toISOString().slice(0, 19);
}

/** Milliseconds of a datetime-local field, NaN where it is not a time. @param {string} text */
export function fromField(text) {
  return text ? new Date(text).getTime() : NaN;
}
