/** Wires the page: polls the fleet, chooses the view, says what is new. */

import { get, loadFleet } from "./api.js";
import { formatRecent, formatSpan } from "./format.js";
import { useNow, usePoll, useRoute } from "./hooks.js";
import { newsOf } from "./incidents.js";
import { Footer, Header } from "./parts/header.js";
import { href } from "./route.js";
import { html, render, useEffect, useRef, useState } from "./vendor/htm/standalone.module.js";
import { EngineView } from "./views/engine.js";
import { IncidentView } from "./views/incident.js";
import { Incidents } from "./views/incidents.js";
import { Overview } from "./views/overview.js";
import { QueryView } from "./views/query.js";

/** @typedef {Awaited<ReturnType<typeof loadFleet>>} Fleet */

const POLL_MS = 5000;

function App() {
  const route = useRoute();
  const { data: fleet, atMs, error, failedSinceMs } = usePoll(loadFleet, POLL_MS, []);
  const status = usePoll((signal) => get("api/status", {}, signal), 60_000, [failedSinceMs > 0]);
  const news = useNews(fleet?.open ?? null);
  useEffect(() => {
    const count = fleet?.open.length;
    const mark = failedSinceMs ? "? " : count ? `(${count}) ` : "";
    document.title = `${mark}${route.view === "engine" ? `${route.subject} · ` : ""}LOMS`;
  }, [fleet, failedSinceMs, route.view, route.subject]);
  useEffect(() => scrollTo(0, 0), [route.view, route.subject]);
  return html`
    <a class="skip" href="#main" onClick=${skip}>Skip to content</a>
    <${Header} view=${route.view} fleet=${fleet} failedSinceMs=${failedSinceMs} />
    <div class="visually-hidden" role="status" aria-live="assertive" id="news">${news}</div>
    ${error && html`<${Outage} error=${error} sinceMs=${failedSinceMs} seenMs=${atMs} />`}
    ${!error && fleet?.trouble && html`<div class="outage"><p role="alert"><b>LOMS does not see everything</b>: ${fleet.trouble}.</p></div>`}
    <main id="main" tabindex="-1" class=${error ? "stale" : ""}>
      <${View} route=${route} fleet=${fleet} status=${status.data} />
    </main>
    <${Footer} status=${status.data} />
  `;
}

/** The hash is the route, so the skip link moves the focus itself. @param {Event} event */
function skip(event) {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

/** @param {{route: import("./route.js").Route, fleet: Fleet | null, status: any}} props */
function View({ route: { view, subject, params }, fleet, status }) {
  if (view === "query") return html`<${QueryView} params=${params} />`;
  if (view === "incident") return html`<${IncidentView} key=${subject} id=${subject} />`;
  if (!fleet) return html`<p class="quiet">loading…</p>`;
  if (view === "incidents") return html`<${Incidents} fleet=${fleet} />`;
  if (view === "engine") return html`<${EngineView} key=${subject} instance=${subject} params=${params} fleet=${fleet} />`;
  if (view === "") return html`<${Overview} fleet=${fleet} status=${status} />`;
  return html`<p class="problem">There is nothing at this address. <a href=${href("")}>Overview</a></p>`;
}

/** @param {{error: import("./api.js").ApiError, sinceMs: number, seenMs: number}} props */
function Outage({ error, sinceMs, seenMs }) {
  const nowMs = useNow();
  const old = seenMs ? ` What stands below was true at ${formatRecent(seenMs, nowMs)} and may not be now.` : "";
  return html`<div class="outage">
    <p role="alert">
      <b>${error.status === 401 ? "LOMS wants its token" : "LOMS does not answer"}</b> since ${formatRecent(sinceMs, nowMs)}:${" "}
      ${error.message}.${old} ${error.status === 401 && "Open this page once with ?token=… in its address."}
    </p>
    <p>For ${formatSpan(nowMs - sinceMs)} now; trying again every ${POLL_MS / 1000} s.</p>
  </div>`;
}

/** What to read out, from one poll to the next. @param {Fleet["open"] | null} open */
function useNews(open) {
  const before = useRef(null);
  const [news, setNews] = useState("");
  useEffect(() => {
    if (open === null) return;
    const text = newsOf(before.current, open);
    before.current = open;
    if (text) setNews(text);
  }, [open]);
  return news;
}

document.body.replaceChildren();
render(html`<${App} />`, document.body);
