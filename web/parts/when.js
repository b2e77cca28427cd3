/** Moments and ages that keep counting. */

import { formatAgo, formatMoment, formatRecent, formatSpan } from "../format.js";
import { useNow } from "../hooks.js";
import { html } from "../vendor/htm/standalone.module.js";

/** "4 min ago", the moment itself on hover. @param {{ms: number}} props */
export function Ago({ ms }) {
  const nowMs = useNow();
  return html`<time datetime=${iso(ms)} title=${formatMoment(ms)}>${formatAgo(ms, nowMs)}</time>`;
}

/** "for 4 min 12 s". @param {{sinceMs: number}} props */
export function Lasting({ sinceMs }) {
  const nowMs = useNow();
  return html`<time datetime=${iso(sinceMs)} title=${formatMoment(sinceMs)}>${formatSpan(nowMs - sinceMs)}</time>`;
}

/** "02:13:21 CET (01:13:21 UTC)", with the date unless it is today. @param {{ms: number}} props */
export function At({ ms }) {
  const nowMs = useNow();
  return html`<time class="at" datetime=${iso(ms)}>${formatRecent(ms, nowMs)}</time>`;
}

/** @param {number} ms */
function iso(ms) {
  return new Date(ms).toISOString();
}
