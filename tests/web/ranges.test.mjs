import assert from "node:assert/strict";
import { test } from "node:test";

process.env.TZ = "Europe/Berlin";
const r = await import("../../web/ranges.js");
const { href, parseRoute } = await import("../../web/route.js");

const params = (text) => new URLSearchParams(text);
const HOUR = { spanMs: 3600e3 };

test("a range survives the address", () => {
  for (const range of [{ spanMs: 900e3 }, { fromMs: 1000, toMs: 61_000 }]) {
    assert.deepEqual(r.rangeOf(params(r.rangeParams(range)), HOUR), range);
  }
});

test("nonsense in the address falls back", () => {
  for (const text of ["", "range=9y", "from=5", "from=10&to=5", "from=a&to=b", "from=-5&to=5"]) {
    assert.deepEqual(r.rangeOf(params(text), HOUR), HOUR);
  }
});

test("bounds and spans", () => {
  assert.deepEqual(r.boundsOf(HOUR, 7200e3), [3600e3, 7200e3]);
  assert.deepEqual(r.boundsOf({ fromMs: 1, toMs: 2 }, 7200e3), [1, 2]);
  assert.equal(r.spanOf({ fromMs: 1000, toMs: 61_000 }), 60_000);
});

test("steps are round and keep the number of points", () => {
  assert.equal(r.stepFor(300e3, 300), 1000);
  assert.equal(r.stepFor(3600e3, 300), 15_000);
  assert.equal(r.stepFor(86_400e3, 240), 600e3);
  assert.equal(r.stepFor(7 * 86_400e3, 240), 3600e3);
  assert.equal(r.stepFor(400 * 86_400e3, 100), 4 * 86_400e3);
  assert.equal(r.stepFor(3600e3, 0), 600e3);
});

test("a rate sees at least a minute, four scrapes and the whole step", () => {
  assert.equal(r.rateWindow(5000, 5), "60s");
  assert.equal(r.rateWindow(5000, 30), "120s");
  assert.equal(r.rateWindow(600e3, 5), "600s");
});

test("the time around an incident has more room before than after", () => {
  assert.deepEqual(r.around(1_000_000, 1_060_000), [700_000, 1_135_000]);
  assert.deepEqual(r.around(0, 4 * 3600e3), [-3600e3, 4 * 3600e3 + 900e3]);
});

test("form fields are local time, on both sides of the change to summer time", () => {
  assert.equal(r.toField(Date.UTC(2026, 2, 29, 0, 17, 33)), "2026-03-29T01:17:33");
  assert.equal(r.toField(Date.UTC(2026, 2, 29, 1, 0, 0)), "2026-03-29T03:00:00");
  assert.equal(r.fromField("2026-03-29T01:17:33"), Date.UTC(2026, 2, 29, 0, 17, 33));
  assert.ok(Number.isNaN(r.fromField("")));
});

test("routes", () => {
  const route = parseRoute("#/engine/127.0.0.1:8000?range=1h");
  assert.equal(route.view, "engine");
  assert.equal(route.subject, "127.0.0.1:8000");
  assert.equal(route.params.get("range"), "1h");
  assert.deepEqual(parseRoute(""), { view: "", subject: "", params: params("") });
  assert.equal(parseRoute("#/engine/%E0%A4%A").subject, "%E0%A4%A");
});

test("any instance and any expression survive the address", () => {
  for (const text of ["gpu-1:8000", "a/b?c#d", 'rate(x{a="é%\\"}[5m]) > 1 ?', "<img src=x>"]) {
    assert.equal(parseRoute(href("engine", text)).subject, text);
    assert.equal(parseRoute(href("query", "", { expr: text })).params.get("expr"), text);
  }
  assert.equal(href("engine", "127.0.0.1:8000"), "#/engine/127.0.0.1:8000");
});
