/** The server's HTTP API: addresses, errors, the server's time, shapes of the answers. */

/**
 * @typedef {"idle" | "busy" | "long_prefill" | "stalled" | "dead" | "unknown"} EngineState
 * @typedef {"none" | "info" | "warning" | "critical"} Severity
 * @typedef {{instance: string, job: string, engine: string, model: string, version: string, zone: string,
 *   simulated: boolean, up: boolean, state: EngineState, state_reason: string, since_ms: number | null,
 *   last_progress_ms: number | null, unavailable: Record<string, string>, contract: Odd[]}} Engine
 * @typedef {{kind: string, severity: Severity, family: string, text: string}} Odd
 * @typedef {{text: string, expr: string, value: number | null, unit: string}} Evidence
 * @typedef {{rule: string, fingerprint: string, state: "pending" | "firing" | "resolved", severity: Severity,
 *   labels: Record<string, string>, annotations: Record<string, string>, value: number, active_at_ms: number,
 *   fired_at_ms: number | null, resolved_at_ms: number | null, expr: string, evidence: Evidence[]}} Alert
 * @typedef {{id: string, title: string, state: "open" | "resolved", severity: Severity, group: Record<string, string>,
 *   opened_at_ms: number, updated_at_ms: number, resolved_at_ms: number | null, alerts: Alert[]}} Incident
 * @typedef {{job: string, instance: string, url: string, engine: string, up: boolean, health: "up" | "down" | "unknown",
 *   last_error: string, last_scrape_ms: number | null, duration_seconds: number | null, samples: number | null,
 *   interval_seconds: number, discovered_by: string}} Target
 * @typedef {{metric: Record<string, string>, values: [number, string][]}} MatrixRow
 */

const TIMEOUT_MS = 20_000;

/** What went wrong, in the API's own words where it gave any; `status` is 0 where nobody answered. */
export class ApiError extends Error {
  /** @param {string} message @param {number} status */
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

let aheadMs = 0;

/** The server's time in ms: ages and windows stay right where the browser's clock is wrong. */
export function now() {
  return Date.now() + aheadMs;
}

/** @param {Response} response the `Date` header has whole seconds, so a small difference says nothing */
function compareClocks(response) {
  const theirs = Date.parse(response.headers.get("date") ?? "");
  const difference = theirs + 500 - Date.now();
  aheadMs = Math.abs(difference) > 2500 ? difference : 0;
}

/**
 * GET `path` below the page's own address, so that a path prefix in front of LOMS does not matter.
 * @param {string} path @param {Record<string, string>} params @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
export async function get(path, params = {}, signal) {
  const url = new URL(path, document.baseURI);
  url.search = new URLSearchParams(params).toString();
  const timeout = AbortSignal.timeout(TIMEOUT_MS);
  let response;
  try {
    response = await fetch(url, { signal: signal ? AbortSignal.any([signal, timeout]) : timeout });
  } catch (error) {
    if (signal?.aborted) throw error;
    const why = timeout.aborted ? `no answer within ${TIMEOUT_MS / 1000} s` : "no connection";
    throw new ApiError(`${url.host}: ${why}`, 0);
  }
  compareClocks(response);
  const body = await response.json().catch(() => null);
  if (response.ok && body !== null) return body;
  throw new ApiError(explain(body) ?? `${url.pathname}: HTTP ${response.status}`, response.status);
}

/** @param {any} body @returns {string | null} */
function explain(body) {
  if (typeof body?.error === "string") return body.errorType ? `${body.errorType}: ${body.error}` : body.error;
  return typeof body?.detail === "string" ? body.detail : null;
}

/**
 * @param {string} expr @param {number} fromMs @param {number} toMs @param {number} stepMs @param {AbortSignal} [signal]
 * @returns {Promise<MatrixRow[]>}
 */
export async function queryRange(expr, fromMs, toMs, stepMs, signal) {
  const params = { query: expr, start: String(fromMs / 1000), end: String(toMs / 1000), step: String(stepMs / 1000) };
  return (await get("api/v1/query_range", params, signal)).data.result;
}

/**
 * What every view needs: engines, incidents, targets.
 * @param {AbortSignal} signal
 * @returns {Promise<{engines: Engine[], open: Incident[], trouble: string, resolved: Incident[], targets: Target[],
 *   problems: string[]}>} `trouble`: why LOMS may not see what goes on; `problems`: what the search for targets could
 *   not read
 */
export async function loadFleet(signal) {
  const [engines, open, resolved, targets] = await Promise.all([
    get("api/engines", {}, signal),
    get("api/incidents", { state: "open", limit: "100" }, signal),
    get("api/incidents", { state: "resolved", limit: "50" }, signal),
    get("api/targets", {}, signal),
  ]);
  const { incidents, trouble = "" } = open;
  return { engines, open: incidents, trouble, resolved: resolved.incidents, targets: targets.targets, problems: targets.problems };
}
