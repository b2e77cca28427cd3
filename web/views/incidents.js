/** All incidents, open ones first. */

import { byEnd, byUrgency } from "../incidents.js";
import { IncidentRows } from "../parts/incident_card.js";
import { html } from "../vendor/htm/standalone.module.js";

/** @param {{fleet: import("../app.js").Fleet}} props */
export function Incidents({ fleet: { open, resolved } }) {
  return html`
    <h1>Incidents</h1>
    <section aria-labelledby="open-title">
      <h2 id="open-title">Open</h2>
      ${open.length > 0 ? html`<${IncidentRows} incidents=${byUrgency(open)} />` : html`<p class="quiet">None: all quiet.</p>`}
    </section>
    <section aria-labelledby="resolved-title">
      <h2 id="resolved-title">Resolved</h2>
      ${resolved.length > 0
        ? html`<${IncidentRows} incidents=${byEnd(resolved)} />`
        : html`<p class="quiet">None in the kept history.</p>`}
    </section>
  `;
}
