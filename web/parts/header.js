/** The bar at the top: overall state, where to go, the time here and in UTC, whether LOMS answers. And the last line. */

import { formatBytes, formatClock, formatNumber, formatSpan, plural, zoneName } from "../format.js";
import { useNow } from "../hooks.js";
import { byUrgency } from "../incidents.js";
import { href } from "../route.js";
import { html, useState } from "../vendor/htm/standalone.module.js";
import { Icon } from "./icon.js";

const VIEWS = [
  ["", "Overview"],
  ["incidents", "Incidents"],
  ["query", "Query"],
];
const THEMES = ["auto", "light", "dark"];
const THEME_KEY = "loms.theme"; // theme.js reads it before the first paint

/**
 * @param {{view: string, fleet: {engines: any[], open: import("../incidents.js").Incident[], trouble: string} | null,
 *   failedSinceMs: number}} props
 */
export function Header({ view, fleet, failedSinceMs }) {
  return html`<header class="bar">
    <a class="brand" href=${href("")}><img src="web/icon.svg" alt="" width="22" height="22" />LOMS</a>
    <${Overall} fleet=${fleet} failed=${failedSinceMs > 0} />
    <nav aria-label="Views">
      ${VIEWS.map(
        ([name, label]) => html`<a href=${href(name)} aria-current=${name === view ? "page" : undefined}>${label}</a>`,
      )}
    </nav>
    <${Clock} />
    <${Connection} known=${fleet !== null} failedSinceMs=${failedSinceMs} />
    <${ThemeButton} />
  </header>`;
}

/** One glance: is anything wrong? */
function Overall({ fleet, failed }) {
  if (failed) return html`<strong class="overall unsure"><${Icon} name="unknown" />state unknown</strong>`;
  if (!fleet) return html`<strong class="overall unsure">loading…</strong>`;
  if (fleet.trouble && fleet.open.length === 0) {
    return html`<strong class="overall unsure"><${Icon} name="unknown" />state unknown</strong>`;
  }
  const [worst] = byUrgency(fleet.open);
  if (worst) {
    return html`<a class="overall severity-${worst.severity}" href=${href("")}>
      <${Icon} name=${worst.severity} />${plural(fleet.open.length, "open incident")}
    </a>`;
  }
  if (fleet.engines.length === 0) return html`<strong class="overall unsure">no engine yet</strong>`;
  return html`<strong class="overall quiet"><${Icon} name="ok" />all quiet</strong>`;
}

function Clock() {
  const nowMs = useNow();
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  return html`<div class="clock" title="local time zone: ${zone}">
    <span><b>${formatClock(nowMs)}</b> ${zoneName(nowMs)}</span> <span>${formatClock(nowMs, true)} UTC</span>
  </div>`;
}

function Connection({ known, failedSinceMs }) {
  const nowMs = useNow();
  if (failedSinceMs) {
    return html`<span class="connection lost"><${Icon} name="offline" />no answer for ${formatSpan(nowMs - failedSinceMs)}</span>`;
  }
  return html`<span class="connection"><i class=${known ? "dot on" : "dot"}></i>${known ? "live" : "connecting"}</span>`;
}

function ThemeButton() {
  const [theme, setTheme] = useState(document.documentElement.dataset.theme ?? "auto");
  function turn() {
    const next = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    document.documentElement.dataset.theme = next;
    setTheme(next);
    remember(next);
  }
  return html`<button type="button" class="theme" onClick=${turn} title="colours: ${theme}" aria-label="Colours: ${theme}">
    <${Icon} name=${theme} />
  </button>`;
}

/** What LOMS says of itself: version, uptime, what it keeps, and what it had to drop. @param {{status: any}} props */
export function Footer({ status }) {
  const nowMs = useNow();
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const { version, started_ms: started, store, dropped_samples: dropped = {} } = status ?? {};
  const parts = [
    `LOMS ${version ?? ""}`,
    started && `up ${formatSpan(nowMs - started)}`,
    store && `${formatNumber(store.series)} series, ${formatNumber(store.samples)} samples, ${formatBytes(store.bytes_on_disk)}`,
    ...Object.entries(dropped)
      .filter(([, count]) => count > 0)
      .map(([reason, count]) => `${formatNumber(count)} samples dropped: ${reason}`),
    `times in ${zone}`,
  ];
  return html`<footer>${parts.filter(Boolean).join(" · ")}</footer>`;
}

/** @param {string} theme */
function remember(theme) {
  try {
    localStorage.setItem(THEME_KEY, theme);
  } catch {
    return; // a browser that keeps nothing still turns
  }
}
