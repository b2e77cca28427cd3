/** A state or a severity: shape, colour and word together. */

import { html } from "../vendor/htm/standalone.module.js";
import { Icon } from "./icon.js";

const WORDS = { long_prefill: "long prefill" };

/** @param {{state: import("../api.js").EngineState}} props */
export function StatePill({ state }) {
  return html`<span class="pill state-${state}"><${Icon} name=${state} />${WORDS[state] ?? state}</span>`;
}

/** @param {{severity: import("../api.js").Severity, resolved?: boolean}} props */
export function SeverityPill({ severity, resolved = false }) {
  const look = resolved ? "resolved" : `severity-${severity}`;
  return html`<span class="pill ${look}">
    <${Icon} name=${resolved ? "ok" : severity} />${resolved ? `resolved ${severity}` : severity}
  </span>`;
}
