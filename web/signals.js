/** What is drawn of an engine: one table of panels, each a few PromQL lines by instance over canonical names. Pure. */

import { quoted } from "./series_window.js";

/**
 * @typedef {(selector: string, window: string) => string} Expr selector: "{…}" or "", window: a PromQL duration
 * @typedef {{key: string, label: string, needs: string, expr: Expr, tone: string, dash?: number[]}} Signal
 *   `needs` is the canonical family without which there is nothing to draw; `tone` names a colour of the style sheet.
 * @typedef {{key: string, title: string, about: string, unit: string, max?: number, signals: Signal[]}} Panel
 */

const TTFT = "gen_ai_server_time_to_first_token_seconds";
const E2E = "gen_ai_server_request_duration_seconds";
const ITL = "llm_engine_inter_token_latency_seconds";
const TOKENS_IN = "llm_engine_tokens_input_total";
const TOKENS_OUT = "llm_engine_tokens_output_total";
const RUNNING = "llm_engine_requests_running";
const WAITING = "llm_engine_requests_waiting";
const PREEMPTED = "llm_engine_requests_preempted_total";
const KV = "llm_engine_kv_cache_utilization_ratio";
const LOOKUPS = "llm_engine_prefix_cache_lookup_tokens_total";
const HITS = "llm_engine_prefix_cache_hit_tokens_total";

/** @param {string} name @param {Expr} [of] @returns {Expr} */
const perInstance = (name, of = (s) => name + s) => (s, w) => `sum by (instance) (${of(s, w)})`;
/** @param {string} name @returns {Expr} */
const perSecond = (name) => perInstance(name, (s, w) => `rate(${name}${s}[${w}])`);
/** @param {string} family @returns {Expr} mean of a histogram's observations */
const meanOf = (family) => (s, w) => `${perSecond(`${family}_sum`)(s, w)} / ${perSecond(`${family}_count`)(s, w)}`;

/** @param {number} q @param {string} family @returns {Expr} */
function quantile(q, family) {
  return (s, w) => `histogram_quantile(${q}, sum by (instance, le) (rate(${family}_bucket${s}[${w}])))`;
}

/** @param {string} key @param {string} family @param {number[]} percents @returns {Signal[]} */
function quantiles(key, family, percents) {
  const tones = ["low", "mid", "high"].slice(3 - percents.length);
  const dashes = [[2, 3], [6, 3], []].slice(3 - percents.length);
  return percents.map((p, i) => ({
    key: `${key}_p${p}`,
    label: `p${p}`,
    needs: family,
    expr: quantile(p / 100, family),
    tone: tones[i],
    dash: dashes[i],
  }));
}

/** @param {string} key @param {string} label @param {string} tone @returns {Signal} */
function phase(key, label, tone) {
  const family = `llm_engine_request_${key}_duration_seconds`;
  return { key: `${key}_time`, label, needs: family, expr: meanOf(family), tone };
}

/** @type {Signal[]} */
const QUEUE = [
  { key: "running", label: "run", needs: RUNNING, expr: perInstance(RUNNING), tone: "low" },
  { key: "waiting", label: "wait", needs: WAITING, expr: perInstance(WAITING), tone: "warm" },
];
/** @type {Signal} */
const OUTPUT = { key: "out", label: "output", needs: TOKENS_OUT, expr: perSecond(TOKENS_OUT), tone: "high" };

/** @type {Panel} */
const KV_PANEL = {
  key: "kv",
  title: "KV cache",
  about: "used share of the device's KV pool",
  unit: "ratio",
  max: 1,
  signals: [{ key: "kv", label: "used", needs: KV, expr: (s) => `max by (instance) (${KV}${s})`, tone: "high" }],
};

/** Columns of the overview. @type {Panel[]} */
export const COLUMNS = [
  { key: "ttft", title: "TTFT", about: "time to first token", unit: "s", signals: quantiles("ttft", TTFT, [50, 99]) },
  { key: "itl", title: "ITL p99", about: "99th percentile of inter-token latency", unit: "s", signals: quantiles("itl", ITL, [99]) },
  { key: "output", title: "Output", about: "generated tokens per second", unit: "tok/s", signals: [OUTPUT] },
  KV_PANEL,
  { key: "queue", title: "Queue", about: "requests in the batch, requests waiting", unit: "", signals: QUEUE },
];

/** Charts of one engine. @type {Panel[]} */
export const CHARTS = [
  {
    key: "ttft",
    title: "Time to first token",
    about: "arrival to first generated token, queueing included",
    unit: "s",
    signals: quantiles("ttft", TTFT, [50, 90, 99]),
  },
  {
    key: "itl",
    title: "Inter-token latency",
    about: "gap between successive output tokens",
    unit: "s",
    signals: quantiles("itl", ITL, [50, 90, 99]),
  },
  {
    key: "e2e",
    title: "Request duration",
    about: "arrival to last token",
    unit: "s",
    signals: quantiles("e2e", E2E, [50, 90, 99]),
  },
  {
    key: "throughput",
    title: "Throughput",
    about: "tokens per second",
    unit: "tok/s",
    signals: [{ key: "in", label: "input", needs: TOKENS_IN, expr: perSecond(TOKENS_IN), tone: "warm" }, OUTPUT],
  },
  {
    key: "queue",
    title: "Batch and queue",
    about: "requests in the batch, and waiting for a place in it",
    unit: "requests",
    signals: QUEUE,
  },
  KV_PANEL,
  {
    key: "phases",
    title: "Where a request's time goes",
    about: "mean per request",
    unit: "s",
    signals: [phase("queue", "queue", "warm"), phase("prefill", "prefill", "mid"), phase("decode", "decode", "high")],
  },
  {
    key: "prefix",
    title: "Prefix cache hit rate",
    about: "share of looked-up prompt tokens whose KV was reused",
    unit: "ratio",
    max: 1,
    signals: [
      {
        key: "hit_rate",
        label: "hits",
        needs: LOOKUPS,
        expr: (s, w) => `${perSecond(HITS)(s, w)} / ${perSecond(LOOKUPS)(s, w)}`,
        tone: "high",
      },
    ],
  },
  {
    key: "preemptions",
    title: "Preemptions",
    about: "running requests pushed back to the queue, per minute",
    unit: "/min",
    signals: [
      {
        key: "preempted",
        label: "preempted",
        needs: PREEMPTED,
        expr: (s, w) => `60 * ${perSecond(PREEMPTED)(s, w)}`,
        tone: "warm",
      },
    ],
  },
];

/** Why `engine` cannot have this signal, or "" where it can. @param {import("./api.js").Engine} engine @param {Signal} signal */
export function reasonFor(engine, signal) {
  return engine.unavailable[signal.needs] ?? "";
}

/** Whether the engine can have at least one of the panel's signals. @param {import("./api.js").Engine} engine @param {Panel} panel */
export function isDrawn(engine, panel) {
  return panel.signals.some((signal) => !reasonFor(engine, signal));
}

/** @param {string} instance */
export function selectorOf(instance) {
  return `{instance=${quoted(instance)}}`;
}
