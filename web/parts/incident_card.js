/** Incidents in lists: an open one with all that helps to act, others as one line. */

import { beganAt, instancesOf, leadAlert, sayingsOf } from "../incidents.js";
import { formatSpan, plural } from "../format.js";
import { href } from "../route.js";
import { html } from "../vendor/htm/standalone.module.js";
import { EvidenceList } from "./evidence.js";
import { SeverityPill } from "./pill.js";
import { Prose } from "./prose.js";
import { Ago, At, Lasting } from "./when.js";

/** @typedef {import("../incidents.js").Incident} Incident */

/** @param {{incident: Incident}} props */
export function IncidentCard({ incident }) {
  const lead = leadAlert(incident);
  const nextStep = lead?.annotations.next_step;
  const since = beganAt(incident);
  return html`<article class="incident severity-${incident.severity}" data-id=${incident.id}>
    <header>
      <${SeverityPill} severity=${incident.severity} />
      <h3><a href=${href("incident", incident.id)}>${incident.title}</a></h3>
      <p class="since"><b><${Lasting} sinceMs=${since} /></b> since <${At} ms=${since} /></p>
    </header>
    <div class="incident-body">
      <div>
        ${sayingsOf(incident).slice(0, 2).map((text) => html`<p><${Prose} text=${text} /></p>`)}
        ${nextStep && html`<p class="next-step"><b>Next step</b> <${Prose} text=${nextStep} /></p>`}
        <p class="links">
          <${EngineLinks} incident=${incident} />
          <a href=${href("incident", incident.id)}>timeline and evidence</a>
          ${incident.alerts.length > 1 && html`<span class="quiet">${plural(incident.alerts.length, "alert")}</span>`}
        </p>
      </div>
      <${EvidenceList} evidence=${lead?.evidence ?? []} incident=${incident} />
    </div>
  </article>`;
}

/** @param {{incident: Incident}} props */
export function EngineLinks({ incident }) {
  return instancesOf(incident).map((name) => html`<a class="mono" href=${href("engine", name)}>${name}</a>`);
}

/** @param {{incidents: Incident[]}} props */
export function IncidentRows({ incidents }) {
  return html`<ul class="incident-rows">
    ${incidents.map((incident) => {
      const since = beganAt(incident);
      const { resolved_at_ms: end } = incident;
      return html`<li key=${incident.id} data-id=${incident.id}>
        <${SeverityPill} severity=${incident.severity} resolved=${end !== null} />
        <a class="row-title" href=${href("incident", incident.id)}>${incident.title}</a>
        <span class="row-time">
          ${end === null
            ? html`for <${Lasting} sinceMs=${since} />`
            : html`<${Ago} ms=${end} />, lasted ${formatSpan(end - since)}`}
        </span>
      </li>`;
    })}
  </ul>`;
}
