import assert from "node:assert/strict";
import { test } from "node:test";
import * as m from "../../web/incidents.js";

const alert = (over = {}) => ({
  rule: "R",
  severity: "warning",
  state: "firing",
  labels: { instance: "a:1" },
  active_at_ms: 10_000,
  fired_at_ms: 25_000,
  resolved_at_ms: null,
  ...over,
});
const incident = (over = {}) => ({
  id: "1",
  title: "T",
  severity: "warning",
  group: {},
  opened_at_ms: 25_000,
  resolved_at_ms: null,
  alerts: [alert()],
  ...over,
});
const ids = (list) => list.map((i) => i.id).join("");

test("worst first, then newest", () => {
  const list = [
    incident({ id: "a", severity: "info" }),
    incident({ id: "b", severity: "critical", opened_at_ms: 1 }),
    incident({ id: "c", severity: "critical", opened_at_ms: 2 }),
    incident({ id: "d" }),
  ];
  assert.equal(ids(m.byUrgency(list)), "cbda");
  assert.equal(ids(list), "abcd");
});

test("resolved ones by their end", () => {
  const list = [incident({ id: "a", resolved_at_ms: 5 }), incident({ id: "b", resolved_at_ms: 9 })];
  assert.equal(ids(m.byEnd(list)), "ba");
});

test("the lead alert fires, is worst, came first", () => {
  const lead = (...alerts) => m.leadAlert(incident({ alerts }))?.rule;
  assert.equal(lead(alert({ rule: "old", state: "resolved", severity: "critical" }), alert({ rule: "new" })), "new");
  assert.equal(lead(alert({ rule: "w" }), alert({ rule: "c", severity: "critical" })), "c");
  assert.equal(lead(alert({ rule: "late", active_at_ms: 9 }), alert({ rule: "early", active_at_ms: 8 })), "early");
  assert.equal(lead(), undefined);
});

test("what the alert says, without repeating the title", () => {
  const annotations = { summary: "T", finding: "F", description: "D", next_step: "N" };
  assert.deepEqual(m.sayingsOf(incident({ alerts: [alert({ annotations })] })), ["F", "D"]);
  assert.deepEqual(m.sayingsOf(incident({ alerts: [alert({ annotations: { summary: "S", description: "S" } })] })), ["S"]);
  assert.deepEqual(m.sayingsOf(incident({ alerts: [] })), []);
});

test("an incident's engines, once each", () => {
  const alerts = [alert(), alert({ labels: {} }), alert({ labels: { instance: "b:1" } })];
  assert.deepEqual(m.instancesOf(incident({ group: { instance: "a:1" }, alerts })), ["a:1", "b:1"]);
});

test("spans reach from the first trouble to the end, or to now", () => {
  assert.deepEqual(m.spanOf(incident(), 99_000), { fromMs: 10_000, toMs: 99_000, severity: "warning", title: "T" });
  assert.equal(m.spanOf(incident({ resolved_at_ms: 40_000 }), 99_000).toMs, 40_000);
  assert.equal(m.spansOf([incident()], "b:1", 99_000).length, 0);
  assert.equal(m.spansOf([incident()], "a:1", 99_000).length, 1);
});

test("the timeline is everything in order", () => {
  const over = { resolved_at_ms: 60_000 };
  const events = m.timelineOf(incident({ ...over, alerts: [alert(over), alert({ rule: "P", fired_at_ms: null, active_at_ms: 12_000 })] }));
  assert.deepEqual(
    events.map((e) => [e.atMs, e.kind]),
    [
      [10_000, "pending"],
      [12_000, "pending"],
      [25_000, "firing"],
      [60_000, "resolved"],
      [60_000, "resolved"],
    ],
  );
  assert.match(events[2].text, /^R: firing, after the condition held for 15\s*s$/);
  assert.equal(m.timelineOf(incident({ alerts: [alert({ fired_at_ms: 10_000 })] }))[1].text, "R: firing");
});

test("news are what came and what went, but nothing at the first look", () => {
  const [a, b] = [incident({ id: "a", title: "A" }), incident({ id: "b", title: "B", severity: "critical" })];
  assert.equal(m.newsOf(null, [a]), "");
  assert.equal(m.newsOf([a], [a]), "");
  assert.equal(m.newsOf([a], [b]), "New critical incident: B. Resolved: A.");
});

test("engines in trouble first, the others by name and not by state", () => {
  const engine = (instance, state, up = true) => ({ instance, state, up });
  const list = [
    engine("h:10", "busy"),
    engine("h:9", "idle"),
    engine("h:2", "unknown", false),
    engine("h:3", "dead", false),
    engine("h:4", "stalled"),
  ];
  assert.deepEqual(m.byTrouble(list).map((e) => e.instance), ["h:3", "h:4", "h:2", "h:9", "h:10"]);
});

test("only web links are followed", () => {
  assert.equal(m.safeUrl("https://x/y"), "https://x/y");
  const unsafe = ["javascript:alert(1)", "javascript://x%0Aalert(1)", " https://x", "data:text/html,x", "", undefined];
  for (const url of unsafe) assert.equal(m.safeUrl(url), "");
});
