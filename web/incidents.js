/** What follows from the incidents and engines the API lists: order, spans, events, announcements. Pure. */

import { formatSpan } from "./format.js";

/** @typedef {import("./api.js").Incident} Incident */
/** @typedef {import("./api.js").Alert} Alert */
/** @typedef {import("./api.js").Engine} Engine */
/** @typedef {import("./api.js").Severity} Severity */
/** @typedef {{fromMs: number, toMs: number, severity: Severity, title: string}} Span */
/** @typedef {{atMs: number, kind: "pending" | "firing" | "resolved", text: string, severity: Severity}} Event */

/** @type {Severity[]} */
const WORST_FIRST = ["critical", "warning", "info", "none"];
const rank = (/** @type {Severity} */ s) => WORST_FIRST.indexOf(s);

/** Worst first, then the newest. @param {Incident[]} incidents */
export function byUrgency(incidents) {
  return [...incidents].sort((a, b) => rank(a.severity) - rank(b.severity) || b.opened_at_ms - a.opened_at_ms);
}

/** Newest end first. @param {Incident[]} incidents */
export function byEnd(incidents) {
  return [...incidents].sort((a, b) => (b.resolved_at_ms ?? 0) - (a.resolved_at_ms ?? 0));
}

/** The alert that speaks for the incident: firing before others, then the worst, then the first. @param {Incident} incident */
export function leadAlert(incident) {
  const calm = (/** @type {Alert} */ a) => (a.state === "firing" ? 0 : 1);
  const order = (/** @type {Alert} */ a, /** @type {Alert} */ b) =>
    calm(a) - calm(b) || rank(a.severity) - rank(b.severity) || a.active_at_ms - b.active_at_ms;
  return [...incident.alerts].sort(order)[0];
}

/** What the lead alert says beyond the title, the shortest view first: summary, what was found, description. @param {Incident} incident */
export function sayingsOf(incident) {
  const { summary, finding, description } = leadAlert(incident)?.annotations ?? {};
  return [...new Set([summary, finding, description])].filter((text) => text && text !== incident.title);
}

/** The engines an incident is about. @param {Incident} incident @returns {string[]} */
export function instancesOf(incident) {
  const named = [incident.group.instance, ...incident.alerts.map((a) => a.labels.instance)];
  return [...new Set(named.filter((name) => name))];
}

/** Its first trouble, which may lie before the incident was opened. @param {Incident} incident */
export function beganAt(incident) {
  return Math.min(incident.opened_at_ms, ...incident.alerts.map((a) => a.active_at_ms));
}

/** @param {Incident} incident @param {number} nowMs @returns {Span} */
export function spanOf(incident, nowMs) {
  const { severity, title } = incident;
  return { fromMs: beganAt(incident), toMs: incident.resolved_at_ms ?? nowMs, severity, title };
}

/** Spans of the incidents of one engine. @param {Incident[]} incidents @param {string} instance @param {number} nowMs */
export function spansOf(incidents, instance, nowMs) {
  return incidents.filter((i) => instancesOf(i).includes(instance)).map((i) => spanOf(i, nowMs));
}

/** Everything that happened, oldest first. @param {Incident} incident @returns {Event[]} */
export function timelineOf(incident) {
  /** @type {Event[]} */
  const events = [];
  for (const { rule, severity, active_at_ms, fired_at_ms, resolved_at_ms } of incident.alerts) {
    events.push({ atMs: active_at_ms, kind: "pending", text: `${rule}: condition first met`, severity });
    if (fired_at_ms !== null) {
      const held = fired_at_ms - active_at_ms;
      const text = `${rule}: firing${held >= 1000 ? `, after the condition held for ${formatSpan(held)}` : ""}`;
      events.push({ atMs: fired_at_ms, kind: "firing", text, severity });
    }
    if (resolved_at_ms !== null) {
      events.push({ atMs: resolved_at_ms, kind: "resolved", text: `${rule}: condition no longer met`, severity });
    }
  }
  if (incident.resolved_at_ms !== null) {
    events.push({ atMs: incident.resolved_at_ms, kind: "resolved", text: "Incident resolved", severity: "none" });
  }
  return events.sort((a, b) => a.atMs - b.atMs);
}

/**
 * What a screen reader should say after a poll: incidents that are new, and those that have gone.
 * @param {Incident[] | null} before null at the first poll, when nothing is news @param {Incident[]} after
 */
export function newsOf(before, after) {
  if (before === null) return "";
  const known = new Set(before.map((i) => i.id));
  const still = new Set(after.map((i) => i.id));
  const fresh = after.filter((i) => !known.has(i.id)).map((i) => `New ${i.severity} incident: ${i.title}.`);
  const gone = before.filter((i) => !still.has(i.id)).map((i) => `Resolved: ${i.title}.`);
  return [...fresh, ...gone].join(" ");
}

const TROUBLE = ["stalled", "dead"];

/** Engines in trouble first, otherwise by name: rows must not jump about as engines turn idle and busy. @param {Engine[]} engines */
export function byTrouble(engines) {
  const calm = (/** @type {Engine} */ e) => (TROUBLE.includes(e.state) ? 0 : e.up ? 2 : 1);
  return [...engines].sort((a, b) => calm(a) - calm(b) || a.instance.localeCompare(b.instance, "en", { numeric: true }));
}

/** A link only where following it is safe. @param {string | undefined} url */
export function safeUrl(url) {
  return url && /^https?:\/\//i.test(url) ? url : "";
}
