/** What to show, and what to do, where there is nothing yet. */

import { plural } from "../format.js";
import { html } from "../vendor/htm/standalone.module.js";
import { Ago } from "./when.js";

/** @typedef {import("../api.js").Target} Target */

const SNIPPET = `scrape:
  jobs:
    - name: llm
      targets: ["gpu-1:8000", "gpu-2:8000"]
      deployment_zone: eu-1`;

/** @param {{targets: Target[], problems: string[], status: any}} props */
export function EmptyFleet({ targets, problems, status }) {
  const { host = "this machine", ports = [] } = status?.discovery ?? {};
  return html`<section class="empty" aria-labelledby="empty-title">
    <h2 id="empty-title">No engine yet</h2>
    <p>
      LOMS looks for engines (vLLM, llama.cpp and others) by their <code>/metrics</code>
      ${ports.length > 0 ? html` on ${host}, ports <span class="mono">${ports.join(", ")}</span>` : " on this machine's usual ports"}${" "}
      and finds none so far. One that starts there appears here by itself, within seconds.
    </p>
    <p>Engines elsewhere are named in <code>loms.yaml</code>; then start LOMS again:</p>
    <pre><code>${SNIPPET}</code></pre>
    <p class="quiet">
      vLLM serves <code>/metrics</code> by default; llama.cpp's server wants <code>--metrics</code>. To see LOMS with engines right now:${" "}
      <code>loms demo</code>.
    </p>
    <${SilentTargets} targets=${targets} problems=${problems} engines=${[]} />
  </section>`;
}

/**
 * Targets that are down and not (yet) known as an engine, and what keeps others from being found.
 * @param {{targets: Target[], problems: string[], engines: any[]}} props
 */
export function SilentTargets({ targets, problems, engines }) {
  const known = new Set(engines.map((e) => e.instance));
  const silent = targets.filter((t) => t.health === "down" && !known.has(t.instance));
  if (silent.length + problems.length === 0) return null;
  return html`<div class="silent">
    ${silent.length > 0 && html`<h3>${plural(silent.length, "target")} without an answer</h3>`}
    <ul>
      ${problems.map((problem) => html`<li>${problem}</li>`)}
      ${silent.map(
        (t) => html`<li>
          <span class="mono">${t.url}</span> <span class="quiet">${t.last_error}</span>
          ${t.last_scrape_ms !== null && html`<span class="quiet">, tried <${Ago} ms=${t.last_scrape_ms} /></span>`}
        </li>`,
      )}
    </ul>
  </div>`;
}
