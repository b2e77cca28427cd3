/** SVG paths of sparklines. Pure. */

/** Largest finite value of several lists, `least` if there is none larger. @param {(number | null)[][]} lists @param {number} least */
export function topOf(lists, least = 0) {
  let top = least;
  for (const list of lists) for (const v of list) if (v !== null && Number.isFinite(v) && v > top) top = v;
  return top;
}

/** Whether it grows, never falls, and starts well above 0: from 0 on, its growth would not be seen. @param {(number | null)[]} values */
export function isCounter(values) {
  const there = values.filter((v) => v !== null && Number.isFinite(v));
  const [low, high] = [there[0] ?? 0, there[there.length - 1] ?? 0];
  return low > high / 2 && high > low && there.every((v, i) => i === 0 || v >= there[i - 1]);
}

/**
 * Values as fractions of the height to draw them at: from 0 to `top`, a counter from its own start to its own end.
 * @param {(number | null)[]} values @param {number} top @returns {(number | null)[]}
 */
export function heightsOf(values, top) {
  const there = isCounter(values) ? values.filter((v) => Number.isFinite(v)) : [];
  const [from, to] = there.length > 0 ? [there[0], there[there.length - 1]] : [0, top];
  return values.map((v) => (v === null || !Number.isFinite(v) ? null : Math.min(1, (v - from) / (to - from || 1))));
}

/**
 * A line through `heights` (0 at the bottom, 1 at the top) in a box of `width` × `height`. Missing ones leave a gap;
 * one alone between gaps is a dot (for round line caps).
 * @param {(number | null)[]} heights @param {number} width @param {number} height
 */
export function linePath(heights, width, height) {
  let path = "";
  let pen = false;
  heights.forEach((value, i) => {
    if (value === null) {
      pen = false;
      return;
    }
    const x = round((i / Math.max(1, heights.length - 1)) * width);
    const y = round(height - value * height);
    const alone = !pen && (heights[i + 1] ?? null) === null;
    path += `${pen ? "L" : "M"}${x} ${y}${alone ? "h0" : ""}`;
    pen = true;
  });
  return path;
}

/** @param {number} x */
function round(x) {
  return Math.round(x * 100) / 100;
}

/**
 * Part of the time axis that a span covers, as fractions; null where it lies outside.
 * @param {{fromMs: number, toMs: number}} span @param {number[]} times epoch seconds
 * @returns {[number, number] | null}
 */
export function fractionOf(span, times) {
  const [first, last] = [times[0] * 1000, times[times.length - 1] * 1000];
  const from = Math.max(0, (span.fromMs - first) / (last - first));
  const to = Math.min(1, (span.toMs - first) / (last - first));
  return times.length > 1 && from < 1 && to > 0 ? [from, to] : null;
}
