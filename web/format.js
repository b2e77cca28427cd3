/**
 * Numbers, durations and moments as people read them. Pure: no DOM, no clock of its own.
 * A missing value is an en dash, never 0.
 */

export const NOGAPG = "–";
const GAP = "\u00a0"; // a number and its unit stay on one line

/** At most `places` significant digits behind the point, no exponent, no trailing zeros. @param {number} x @param {number} places */
function digits(x, places) {
  const size = Math.abs(x);
  if (size >= 100 || size === 0) return String(Math.round(x));
  const decimals = Math.min(6, Math.max(0, places - 1 - Math.floor(Math.log10(size))));
  return String(Number(x.toFixed(decimals)));
}

/**
 * The number in the largest of `steps` that leaves at least 1 of it, rounding considered: 999.7 is 1k, not 1000.
 * @param {number} x @param {[number, string][]} steps ascending @param {string} gap @param {number} places
 */
function scaled(x, steps, gap, places) {
  let [factor, unit] = steps[0];
  for (const [f, u] of steps) if (Number(digits(Math.abs(x) / f, places)) >= 1) [factor, unit] = [f, u];
  return digits(x / factor, places) + (unit ? gap + unit : "");
}

/** 1234 → "1.23k". @param {number} x */
export function formatNumber(x, places = 3) {
  return scaled(x, [[1, ""], [1e3, "k"], [1e6, "M"], [1e9, "G"], [1e12, "T"]], "", places);
}

/** 1536 → "1.5 KiB". @param {number} bytes */
export function formatBytes(bytes, places = 3) {
  return scaled(bytes, [[1, "B"], [1024, "KiB"], [1024 ** 2, "MiB"], [1024 ** 3, "GiB"], [1024 ** 4, "TiB"]], GAP, places);
}

/** 0.0834 → "83.4 ms", 8.4 → "8.4 s", 75 → "1 min 15 s". @param {number} seconds */
export function formatSeconds(seconds, places = 3) {
  if (seconds === 0) return `0${GAP}s`;
  if (Math.abs(seconds) >= 60) return formatSpan(seconds * 1000);
  return scaled(seconds, [[1e-6, "µs"], [1e-3, "ms"], [1, "s"]], GAP, places);
}

/** 0.834 → "83.4 %". @param {number} ratio */
export function formatPercent(ratio, places = 3) {
  return digits(ratio * 100, places) + GAP + "%";
}

/**
 * A value in a UCUM-like unit, as the API names them.
 * @param {number | null | undefined} value @param {string} unit "s", "ms", "By", "ratio", "%", "{token}/s", "" …
 * @param {number} places significant digits behind the point
 */
export function formatValue(value, unit = "", places = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return NOGAPG;
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  switch (unit) {
    case "s":
    case "seconds":
      return formatSeconds(value, places);
    case "ms":
      return formatSeconds(value / 1000, places);
    case "By":
    case "bytes":
      return formatBytes(value, places);
    case "timestamp":
      return formatClock(value * 1000);
    case "ratio":
    case "1":
      return formatPercent(value, places);
    case "%":
      return formatPercent(value / 100, places);
    default:
      return formatNumber(value, places) + (unit ? GAP + plainUnit(unit, value) : "");
  }
}

const SCALED = ["s", "seconds", "ms", "By", "bytes", "ratio", "1", "%", "timestamp"];

/** What an axis does not repeat at each tick, for the chart's title: "tokens/s"; "" where ticks carry it. @param {string} unit */
export function titleUnit(unit) {
  return SCALED.includes(unit) ? "" : plainUnit(unit, 2);
}

/** A tick of an axis, or another value whose unit stands in the title. @param {number} value @param {string} unit */
export function formatTick(value, unit) {
  return formatValue(value, SCALED.includes(unit) ? unit : "");
}

/** "{request}" → "requests", "{token}/s" → "tokens/s". @param {string} unit @param {number} value */
function plainUnit(unit, value) {
  return unit.replace(/\{(\w+?)s?\}|^requests$/g, (_, noun = "request") => (value === 1 ? noun : `${noun}s`));
}

/** Two largest parts of a time span: "4 min 12 s", "2 d 3 h". @param {number} ms */
export function formatSpan(ms) {
  const total = Math.max(0, Math.round(ms / 1000));
  const parts = [
    [Math.floor(total / 86400), "d"],
    [Math.floor(total / 3600) % 24, "h"],
    [Math.floor(total / 60) % 60, "min"],
    [total % 60, "s"],
  ];
  const first = parts.findIndex(([n]) => Number(n) > 0);
  if (first < 0) return `0${GAP}s`;
  return parts.slice(first, first + 2).filter(([n]) => Number(n) > 0).map(([n, u]) => `${n}${GAP}${u}`).join(" ");
}

/** "4 min 12 s ago". @param {number} ms @param {number} nowMs */
export function formatAgo(ms, nowMs) {
  return nowMs - ms < 1500 ? "just now" : `${formatSpan(nowMs - ms)} ago`;
}

/** @param {number} n @param {string} noun */
export function plural(n, noun) {
  return `${n} ${noun}${n === 1 ? "" : "s"}`;
}

const two = (/** @type {number} */ n) => String(n).padStart(2, "0");

/** "02:17:33" in local time or UTC. @param {number} ms */
export function formatClock(ms, utc = false) {
  const d = new Date(ms);
  return utc
    ? `${two(d.getUTCHours())}:${two(d.getUTCMinutes())}:${two(d.getUTCSeconds())}`
    : `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;
}

/** "2026-03-29". @param {number} ms */
export function formatDate(ms, utc = false) {
  const d = new Date(ms);
  return utc
    ? `${d.getUTCFullYear()}-${two(d.getUTCMonth() + 1)}-${two(d.getUTCDate())}`
    : `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())}`;
}

/** "2026-03-29 02:17:33 CET (01:17:33 UTC)"; the UTC date stands there only where it differs. @param {number} ms */
export function formatMoment(ms) {
  const utcDate = formatDate(ms, true) === formatDate(ms) ? "" : `${formatDate(ms, true)} `;
  return `${formatDate(ms)} ${formatClock(ms)} ${zoneName(ms)} (${utcDate}${formatClock(ms, true)} UTC)`;
}

/** As `formatMoment`, without the date while it is today's. @param {number} ms @param {number} nowMs */
export function formatRecent(ms, nowMs) {
  if (formatDate(ms) !== formatDate(nowMs)) return formatMoment(ms);
  return `${formatClock(ms)} ${zoneName(ms)} (${formatClock(ms, true)} UTC)`;
}

/** UTC stamps within a text, as the server writes them, in local time with UTC beside it. @param {string} text @param {number} nowMs */
export function localTimes(text, nowMs) {
  return text.replace(/\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z/g, (stamp) => formatRecent(Date.parse(stamp), nowMs));
}

/** Short name of the local zone at that moment: "CET", "GMT+5:30". @param {number} ms */
export function zoneName(ms) {
  const parts = new Intl.DateTimeFormat("en-GB", { timeZoneName: "short" }).formatToParts(new Date(ms));
  return parts.find((p) => p.type === "timeZoneName")?.value ?? "local";
}

/**
 * Labels for a time axis: clock time, with seconds where ticks are closer than a minute, the date where a day begins.
 * @param {number[]} ticks epoch seconds @param {number} step seconds between ticks
 */
export function axisTimes(ticks, step) {
  let day = "";
  return ticks.map((t) => {
    const date = new Date(t * 1000);
    const today = `${date.getDate()} ${date.toLocaleString("en-GB", { month: "short" })}`;
    if (step >= 86400) return today;
    const clock = formatClock(t * 1000);
    const label = step < 60 ? clock : clock.slice(0, 5);
    const turned = day !== "" && day !== today;
    day = today;
    return turned ? `${today}\n${label}` : label;
  });
}
