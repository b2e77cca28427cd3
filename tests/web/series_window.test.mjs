import assert from "node:assert/strict";
import { test } from "node:test";
import { SeriesWindow, labelText, parseSample, quoted, seriesKey } from "../../web/series_window.js";

const A = { instance: "a" };
const row = (from, to, step, value = (t) => t, metric = A) => {
  const values = [];
  for (let t = from; t <= to; t += step) values.push([t, String(value(t))]);
  return { metric, values };
};
const answer = (...rows) => new Map([["q", rows]]);

test("the first plan covers the span, on the grid", () => {
  const window = new SeriesWindow(60_000, 10_000);
  assert.deepEqual(window.plan(1_003_000), { firstMs: 940_000, startMs: 940_000, endMs: 1_000_000 });
});

test("later plans ask only for what is new, and for the last half minute again", () => {
  const window = new SeriesWindow(600_000, 10_000);
  window.merge(window.plan(1_000_000), answer(row(400, 1000, 10)));
  assert.deepEqual(window.plan(1_015_000), { firstMs: 410_000, startMs: 970_000, endMs: 1_010_000 });
});

test("after a long pause nothing older than the span is asked for", () => {
  const window = new SeriesWindow(60_000, 10_000);
  window.merge(window.plan(1_000_000), answer(row(940, 1000, 10)));
  const plan = window.plan(9_000_000);
  assert.equal(plan.startMs, plan.firstMs);
  window.merge(plan, answer());
  assert.deepEqual(window.all("q"), []);
});

test("the grid moves on: old values shift, new ones replace, gaps stay empty", () => {
  const window = new SeriesWindow(60_000, 10_000);
  window.merge(window.plan(1_000_000), answer(row(940, 1000, 10)));
  assert.deepEqual(window.times, [940, 950, 960, 970, 980, 990, 1000]);
  assert.deepEqual(window.of("q", "a"), [940, 950, 960, 970, 980, 990, 1000]);
  window.merge(window.plan(1_020_000), answer(row(970, 990, 10, () => -1), row(1020, 1020, 10, () => "NaN")));
  assert.deepEqual(window.times, [960, 970, 980, 990, 1000, 1010, 1020]);
  assert.deepEqual(window.of("q", "a"), [960, -1, -1, -1, null, null, NaN]);
});

test("a series that vanishes leaves when its last value does", () => {
  const window = new SeriesWindow(60_000, 10_000);
  window.merge(window.plan(1_000_000), answer(row(940, 970, 10)));
  window.merge(window.plan(1_010_000), answer());
  assert.deepEqual(window.of("q", "a"), [950, 960, null, null, null, null, null]);
  window.merge(window.plan(1_040_000), answer());
  assert.deepEqual(window.all("q"), []);
});

test("a failed query keeps what it had and is asked again for all it missed", () => {
  const window = new SeriesWindow(600_000, 10_000);
  const both = (q, p) => new Map([["q", q], ["p", p]]);
  window.merge(window.plan(1_000_000), both([row(400, 1000, 10)], [row(400, 1000, 10)]));
  window.merge(window.plan(1_010_000), both([row(970, 1010, 10)], null));
  assert.equal(window.of("p", "a").at(-2), 1000);
  assert.equal(window.of("p", "a").at(-1), null);
  assert.equal(window.of("q", "a").at(-1), 1010);
  const plan = window.plan(1_060_000);
  assert.equal(plan.startMs, 970_000);
  window.merge(plan, both([row(970, 1060, 10)], [row(970, 1060, 10)]));
  assert.ok(window.of("p", "a").every((v) => v !== null));
});

test("trimmed, it begins with the first value of any series, and keeps some points", () => {
  const window = new SeriesWindow(60_000, 10_000);
  const late = row(970, 1000, 10, (t) => t, { instance: "b" });
  window.merge(window.plan(1_000_000), new Map([["q", [row(980, 1000, 10)]], ["p", [late]]]));
  const part = window.trimmed(2);
  assert.deepEqual(part.times, [970, 980, 990, 1000]);
  assert.deepEqual(part.of("q", "a"), [null, 980, 990, 1000]);
  assert.deepEqual(part.of("p", "b"), [970, 980, 990, 1000]);
  assert.equal(window.trimmed(6).times.length, 6);
  assert.equal(new SeriesWindow(60_000, 10_000).trimmed(6).times.length, 0);
});

test("series are told apart by all their labels", () => {
  const window = new SeriesWindow(20_000, 10_000);
  const plan = window.plan(1_000_000);
  window.merge(plan, answer(row(980, 1000, 10, () => 1), row(980, 1000, 10, () => 2, { instance: "a", le: "1" })));
  assert.deepEqual(window.all("q").map((line) => line.values[0]), [1, 2]);
  assert.equal(seriesKey({ a: "1", b: "2" }), seriesKey({ b: "2", a: "1" }));
});

test("samples and labels as Prometheus writes them", () => {
  assert.equal(parseSample("+Inf"), Infinity);
  assert.equal(parseSample("-Inf"), -Infinity);
  assert.ok(Number.isNaN(parseSample("NaN")));
  assert.equal(parseSample("1.5e-7"), 1.5e-7);
  assert.equal(labelText({ __name__: "up", job: "a" }), 'up{job="a"}');
  assert.equal(labelText({ __name__: "up" }), "up");
  assert.equal(labelText({}), "{}");
  assert.equal(quoted('a"b\\c\nd'), '"a\\"b\\\\c\\nd"');
});
