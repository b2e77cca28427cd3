/** Keeps a set of signals' series up to date in a `SeriesWindow`. */

import { ApiError, now, queryRange } from "./api.js";
import { usePoll } from "./hooks.js";
import { SeriesWindow } from "./series_window.js";
import { boundsOf, spanOf } from "./ranges.js";

/** @typedef {import("./ranges.js").Range} Range */
/** @typedef {{key: string, expr: string}} Query */
/** @typedef {{window: SeriesWindow, errors: Map<string, string>, ready: boolean}} SeriesState */

/**
 * Poll `queries` over `range`: while it moves on as often as the step allows, a past one once. Nothing
 * is asked of the future, for which PromQL would repeat the present.
 * @param {Query[]} queries @param {Range} range @param {number} stepMs @param {number} [fastestMs]
 * @returns {SeriesState}
 */
export function useSeries(queries, range, stepMs, fastestMs = 5000) {
  const live = !("fromMs" in range);
  const moving = live || range.toMs > now();
  const period = moving ? Math.min(60_000, Math.max(fastestMs, stepMs)) : null;
  const inputs = [queries.map((q) => q.expr).join("\n"), spanOf(range), live ? 0 : range.fromMs, stepMs];
  const identity = JSON.stringify(inputs);
  const { data } = usePoll(loader(queries, range, stepMs), period, inputs);
  // What another range or step left behind is not shown under the new one.
  if (data?.identity === identity) return data;
  return { window: new SeriesWindow(spanOf(range), stepMs), errors: new Map(), ready: false };

  /** @param {Query[]} wanted @param {Range} over @param {number} step */
  function loader(wanted, over, step) {
    /** @type {SeriesWindow} */
    let window;
    return async (/** @type {AbortSignal} */ signal) => {
      window ??= new SeriesWindow(spanOf(over), step);
      const plan = window.plan(Math.min(boundsOf(over, now())[1], now()));
      const settled = await Promise.allSettled(
        wanted.map((q) => queryRange(q.expr, plan.startMs, plan.endMs, step, signal)),
      );
      const errors = new Map();
      const answers = new Map();
      settled.forEach((s, i) => {
        answers.set(wanted[i].key, s.status === "fulfilled" ? s.value : null);
        if (s.status === "fulfilled") return;
        // Where nobody answered at all, that is one failure of the poll and not of each query.
        if (!(s.reason instanceof ApiError && s.reason.status)) throw s.reason;
        errors.set(wanted[i].key, s.reason.message);
      });
      window.merge(plan, answers);
      return { window, errors, ready: true, identity };
    };
  }
}
