/** A few characters that explain themselves on hover, focus or tap. */

import { html, useState } from "../vendor/htm/standalone.module.js";

let count = 0;

/** @param {{text: string, reason: string}} props */
export function Hint({ text, reason }) {
  const [open, setOpen] = useState(false);
  const [id] = useState(() => `hint-${++count}`);
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => event.key === "Escape" && setOpen(false);
  return html`<span class="hint">
    <button
      type="button"
      aria-expanded=${open}
      aria-describedby=${id}
      onClick=${() => setOpen(!open)}
      onBlur=${() => setOpen(false)}
      onKeyDown=${onKeyDown}
    >
      ${text}
    </button>
    <span class="bubble" role="tooltip" id=${id}>${reason}</span>
  </span>`;
}
