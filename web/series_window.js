/** Several queries' series on one moving grid of times; only what is new is asked for. Pure. */

/** @typedef {import("./api.js").MatrixRow} MatrixRow */
/** @typedef {{labels: Record<string, string>, values: (number | null)[]}} Line values on the window's `times`; null: no sample */

const LATE_MS = 30_000; // samples can arrive this much after their time, so the newest stretch is asked for again

export class SeriesWindow {
  /** @param {number} spanMs @param {number} stepMs */
  constructor(spanMs, stepMs) {
    this.spanMs = spanMs;
    this.stepMs = stepMs;
    /** @type {number[]} epoch seconds, ascending, `stepMs` apart */
    this.times = [];
    /** @type {Map<string, Map<string, Line>>} query key → series key → line */
    this.lines = new Map();
    /** Up to here every query has answered. */
    this.completeMs = 0;
  }

  /** What to fetch at `nowMs`; both ends lie on the grid. @param {number} nowMs */
  plan(nowMs) {
    const endMs = Math.floor(nowMs / this.stepMs) * this.stepMs;
    const firstMs = endMs - Math.floor(this.spanMs / this.stepMs) * this.stepMs;
    const knownMs = Math.floor((this.completeMs - LATE_MS) / this.stepMs) * this.stepMs;
    return { firstMs, startMs: Math.min(endMs, Math.max(firstMs, knownMs)), endMs };
  }

  /**
   * Move the grid to `plan` and put the answers in. A query without an answer keeps what it had and is asked again
   * for the same stretch next time.
   * @param {{firstMs: number, startMs: number, endMs: number}} plan
   * @param {Map<string, MatrixRow[] | null>} answers query key → rows, or null where the query failed
   */
  merge({ firstMs, startMs, endMs }, answers) {
    const old = this.times;
    const count = Math.round((endMs - firstMs) / this.stepMs) + 1;
    const index = (/** @type {number} */ seconds) => Math.round((seconds * 1000 - firstMs) / this.stepMs);
    this.times = Array.from({ length: count }, (_, i) => (firstMs + i * this.stepMs) / 1000);
    const fresh = index(startMs / 1000);
    for (const [key, rows] of answers) {
      const before = this.lines.get(key) ?? new Map();
      /** @type {Map<string, Line>} */
      const after = new Map();
      for (const [name, line] of before) {
        const values = new Array(count).fill(null);
        line.values.forEach((/** @type {number | null} */ value, /** @type {number} */ i) => {
          const at = index(old[i]);
          if (at >= 0 && at < (rows ? fresh : count)) values[at] = value;
        });
        if (values.some((v) => v !== null)) after.set(name, { labels: line.labels, values });
      }
      for (const row of rows ?? []) {
        const name = seriesKey(row.metric);
        const line = after.get(name) ?? { labels: row.metric, values: new Array(count).fill(null) };
        for (const [seconds, text] of row.values) {
          const at = index(seconds);
          if (at >= fresh && at < count) line.values[at] = parseSample(text);
        }
        after.set(name, line);
      }
      this.lines.set(key, after);
    }
    if ([...answers.values()].every((rows) => rows !== null)) this.completeMs = endMs;
  }

  /** The same without the stretch at its start in which nothing has a value yet, but of at least `least` points. @param {number} least */
  trimmed(least) {
    const all = [...this.lines.values()].flatMap((lines) => [...lines.values()]);
    const first = Math.min(...all.map(({ values }) => values.findIndex((v) => v !== null)).filter((i) => i >= 0));
    const from = Math.max(0, Math.min(first, this.times.length - least));
    const part = new SeriesWindow(this.spanMs, this.stepMs);
    part.times = this.times.slice(from);
    for (const [key, lines] of this.lines) {
      const cut = [...lines].map(([name, { labels, values }]) => [name, { labels, values: values.slice(from) }]);
      part.lines.set(key, new Map(/** @type {[string, Line][]} */ (cut)));
    }
    return part;
  }

  /** All series of a query. @param {string} key @returns {Line[]} */
  all(key) {
    return [...(this.lines.get(key)?.values() ?? [])];
  }

  /** The values of the query's series for `instance`, or an empty list. @param {string} key @param {string} instance */
  of(key, instance) {
    return this.all(key).find((line) => line.labels.instance === instance)?.values ?? [];
  }
}

/** Identity of a label set. @param {Record<string, string>} labels */
export function seriesKey(labels) {
  return JSON.stringify(Object.entries(labels).sort(([a], [b]) => (a < b ? -1 : 1)));
}

/** A sample's text in Prometheus's JSON. @param {string} text */
export function parseSample(text) {
  if (text === "+Inf" || text === "Inf") return Infinity;
  return text === "-Inf" ? -Infinity : Number(text);
}

/** A label set as PromQL writes it. @param {Record<string, string>} labels */
export function labelText(labels) {
  const { __name__: name = "", ...rest } = labels;
  const pairs = Object.entries(rest).map(([k, v]) => `${k}=${quoted(v)}`);
  return name + (pairs.length || !name ? `{${pairs.join(", ")}}` : "");
}

/** A PromQL string. @param {string} text */
export function quoted(text) {
  return `"${text.replaceAll("\\", "\\\\").replaceAll('"', '\\"').replaceAll("\n", "\\n")}"`;
}
