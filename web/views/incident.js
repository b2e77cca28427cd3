/** One incident: what it is, what to do, how it went, and the evidence drawn around it. */

import { get, now } from "../api.js";
import { formatSpan, formatValue, localTimes, plural } from "../format.js";
import { usePoll } from "../hooks.js";
import { beganAt, instancesOf, leadAlert, safeUrl, sayingsOf, spanOf, timelineOf } from "../incidents.js";
import { Chart } from "../parts/chart.js";
import { drawnUnit, useIncidentRange, valueBeside } from "../parts/evidence.js";
import { Icon } from "../parts/icon.js";
import { isCounter } from "../paths.js";
import { SeverityPill } from "../parts/pill.js";
import { Prose } from "../parts/prose.js";
import { At, Lasting } from "../parts/when.js";
import { rangeParams, stepFor } from "../ranges.js";
import { href } from "../route.js";
import { useSeries } from "../series.js";
import { labelText } from "../series_window.js";
import { html } from "../vendor/htm/standalone.module.js";

const POINTS = 300;
const SHOWN = ["summary", "finding", "description", "next_step", "runbook_url"];

/** @param {{id: string}} props */
export function IncidentView({ id }) {
  const { data, error } = usePoll((signal) => get(`api/incidents/${encodeURIComponent(id)}`, {}, signal), 5000, [id]);
  if (data?.id === id) return html`<${Incident} incident=${data} />`;
  if (error) return html`<h1>Incident ${id}</h1><p class="problem" role="alert">${error.message}</p>`;
  return html`<p class="quiet">loading…</p>`;
}

/** @param {{incident: import("../incidents.js").Incident}} props */
function Incident({ incident }) {
  const { title, severity, resolved_at_ms: end, alerts } = incident;
  const since = beganAt(incident);
  const range = useIncidentRange(incident);
  const around = rangeParams("fromMs" in range ? range : { fromMs: now() - range.spanMs, toMs: now() });
  return html`
    <header class="page-head">
      <${SeverityPill} severity=${severity} resolved=${end !== null} />
      <h1>${title}</h1>
      <p class="since">
        ${end === null
          ? html`<b><${Lasting} sinceMs=${since} /></b> since <${At} ms=${since} />`
          : html`lasted <b>${formatSpan(end - since)}</b>, <${At} ms=${since} /> to <${At} ms=${end} />`}
      </p>
    </header>
    <div class="split">
      <section aria-label="What it means">
        <${Annotations} incident=${incident} />
        ${instancesOf(incident).map(
          (name) => html`<p>Engine <a class="mono" href=${href("engine", name, around)}>${name}</a> at that time</p>`,
        )}
      </section>
      <section aria-labelledby="timeline-title">
        <h2 id="timeline-title">Timeline</h2>
        <${Timeline} incident=${incident} />
      </section>
    </div>
    <section aria-labelledby="evidence-title">
      <h2 id="evidence-title">Evidence</h2>
      <${EvidenceCharts} incident=${incident} range=${range} />
    </section>
    <section aria-labelledby="alerts-title">
      <h2 id="alerts-title">${plural(alerts.length, "alert")}</h2>
      ${alerts.map((alert) => html`<${AlertFacts} key=${alert.fingerprint} alert=${alert} title=${title} />`)}
    </section>
  `;
}

/** @param {{incident: import("../incidents.js").Incident}} props */
function Annotations({ incident }) {
  const { next_step: nextStep, runbook_url: runbook } = leadAlert(incident)?.annotations ?? {};
  return html`
    ${sayingsOf(incident).map((text, i) => html`<p class=${i === 0 ? "lead" : ""}><${Prose} text=${text} /></p>`)}
    ${nextStep && html`<p class="next-step"><b>Next step</b> <${Prose} text=${nextStep} /></p>`}
    ${safeUrl(runbook) && html`<p><a href=${safeUrl(runbook)} rel="noopener noreferrer" target="_blank">runbook</a></p>`}
  `;
}

function Timeline({ incident }) {
  const events = timelineOf(incident);
  return html`<ol class="timeline">
    ${events.map(
      ({ atMs, kind, text, severity }) => html`<li class=${`event-${kind} severity-${severity}`}>
        <${Icon} name=${kind === "resolved" ? "ok" : kind === "firing" ? severity : "none"} />
        <span>${text}</span>
        <span class="quiet"><${At} ms=${atMs} />${atMs > events[0].atMs && `, +${formatSpan(atMs - events[0].atMs)}`}</span>
      </li>`,
    )}
  </ol>`;
}

/** One chart for each different expression among the alerts' evidence. */
function EvidenceCharts({ incident, range }) {
  const evidence = incident.alerts.flatMap((alert) => alert.evidence);
  const spanMs = "fromMs" in range ? range.toMs - range.fromMs : range.spanMs;
  const exprs = [...new Set(evidence.map((e) => e.expr).filter((expr) => expr))];
  const { window, errors } = useSeries(exprs.map((expr) => ({ key: expr, expr })), range, stepFor(spanMs, POINTS));
  const words = evidence.filter((e) => !e.expr);
  if (evidence.length === 0) return html`<p class="quiet">The rule gives none beyond its expression.</p>`;
  return html`
    ${words.map((e) => html`<p>${factOf(e)}</p>`)}
    <div class="charts">
      ${exprs.map((expr) => {
        const facts = evidence.filter((e) => e.expr === expr);
        const lines = linesOf(window.all(expr));
        const counters = lines.length > 0 && lines.every((line) => isCounter(line.values));
        return html`<div class="evidence-chart" key=${expr}>
          <${Chart}
            title=${[...new Set(facts.map(factOf))].join("; ")}
            unit=${drawnUnit(facts[0].unit)}
            lines=${lines}
            fromZero=${!counters}
            ownScales=${counters && lines.length > 1}
            times=${window.times}
            bounds=${boundsOf(window, range)}
            spans=${[spanOf(incident, now())]}
            syncKey="incident"
            problem=${errors.get(expr)}
            legend=${lines.length > 1}
            height=${170}
          />
          <p class="expr">
            <a href=${href("query", "", { expr, ...rangeParams({ fromMs: now() - spanMs, toMs: now(), ...range }) })}>query</a>
            <code>${expr}</code>
          </p>
        </div>`;
      })}
    </div>
  `;
}

/** An evidence in one line. @param {import("../parts/evidence.js").Evidence} evidence */
function factOf({ text, value, unit }) {
  const words = localTimes(text, now());
  return [words, valueBeside(words, value, unit)].filter(Boolean).join(": ");
}

/** @param {import("../series_window.js").Line[]} lines */
function linesOf(lines) {
  return lines.slice(0, 8).map(({ labels, values }, i) => ({ label: labelText(labels), tone: `c${i + 1}`, values }));
}

/** @param {import("../series_window.js").SeriesWindow} window @param {import("../ranges.js").Range} range @returns {[number, number]} */
function boundsOf({ times }, range) {
  if ("fromMs" in range) return [range.fromMs, range.toMs];
  return times.length > 0 ? [times[0] * 1000, times[times.length - 1] * 1000] : [now() - range.spanMs, now()];
}

/** @param {{alert: import("../incidents.js").Alert, title: string}} props */
function AlertFacts({ alert, title }) {
  const { rule, state, severity, value, expr, labels, annotations, fingerprint } = alert;
  const more = Object.entries(annotations).filter(([name]) => !SHOWN.includes(name));
  return html`<article class="alert">
    <h3>
      ${rule} <${SeverityPill} severity=${severity} resolved=${state === "resolved"} />
      <span class="quiet">${state}, value ${formatValue(value)}</span>
    </h3>
    ${annotations.summary && annotations.summary !== title && html`<p>${annotations.summary}</p>`}
    <dl class="facts">
      ${Object.entries(labels).map(([name, text]) => html`<div><dt>${name}</dt><dd class="mono">${text}</dd></div>`)}
      ${more.map(([name, text]) => html`<div><dt>${name}</dt><dd>${text}</dd></div>`)}
      <div><dt>fingerprint</dt><dd class="mono">${fingerprint}</dd></div>
    </dl>
    ${expr && html`<p class="expr"><a href=${href("query", "", { expr })}>query</a> <code>${expr}</code></p>`}
  </article>`;
}
