/** A text of the server: stamps become local times, `…` becomes code; everything else stays text. */

import { now } from "../api.js";
import { localTimes } from "../format.js";
import { html } from "../vendor/htm/standalone.module.js";

/** @param {{text: string}} props */
export function Prose({ text }) {
  const parts = localTimes(text, now()).split("`");
  if (parts.length % 2 === 0) return parts.join("`"); // one mark too many: it is no code
  return parts.map((part, i) => (i % 2 ? html`<code>${part}</code>` : part));
}
