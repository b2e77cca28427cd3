import assert from "node:assert/strict";
import { test } from "node:test";

process.env.TZ = "Europe/Berlin";
const f = await import("../../web/format.js");

const plain = (text) => text.replaceAll("\u00a0", " ");
const NIGHT = Date.UTC(2026, 2, 29, 0, 17, 33); // 01:17:33 in Berlin, three quarters of an hour before summer time
const AFTER = Date.UTC(2026, 2, 29, 1, 0, 0); // 03:00:00 in Berlin: 02:00 to 03:00 did not happen

test("seconds take the unit that suits their size", () => {
  const cases = [
    [0, "0 s"],
    [0.0000421, "42.1 µs"],
    [0.000999, "999 µs"],
    [0.0834, "83.4 ms"],
    [0.9996, "1 s"],
    [8.4, "8.4 s"],
    [59.94, "59.9 s"],
    [75, "1 min 15 s"],
    [-0.25, "-250 ms"],
  ];
  for (const [value, text] of cases) assert.equal(plain(f.formatSeconds(value)), text);
});

test("numbers, bytes and ratios", () => {
  assert.equal(f.formatNumber(0), "0");
  assert.equal(f.formatNumber(7), "7");
  assert.equal(f.formatNumber(0.034), "0.034");
  assert.equal(f.formatNumber(999.7), "1k");
  assert.equal(f.formatNumber(1234), "1.23k");
  assert.equal(f.formatNumber(5_400_000), "5.4M");
  assert.equal(f.formatNumber(91.46, 2), "91");
  assert.equal(plain(f.formatBytes(1536)), "1.5 KiB");
  assert.equal(plain(f.formatBytes(80 * 2 ** 30)), "80 GiB");
  assert.equal(plain(f.formatPercent(0.8337)), "83.4 %");
  assert.equal(plain(f.formatPercent(0.8337, 2)), "83 %");
  assert.equal(plain(f.formatPercent(1)), "100 %");
});

test("a missing value is a dash and never 0", () => {
  for (const missing of [null, undefined, NaN]) assert.equal(f.formatValue(missing, "s"), "–");
  assert.equal(f.formatValue(Infinity, "s"), "∞");
  assert.equal(plain(f.formatValue(0, "s")), "0 s");
});

test("units as the API spells them", () => {
  const cases = [
    [0.25, "s", "250 ms"],
    [0.25, "seconds", "250 ms"],
    [250, "ms", "250 ms"],
    [1, "{request}", "1 request"],
    [2, "{requests}", "2 requests"],
    [1, "requests", "1 request"],
    [31, "{token}/s", "31 tokens/s"],
    [612, "tok/s", "612 tok/s"],
    [0.5, "1", "50 %"],
    [0.5, "ratio", "50 %"],
    [50, "%", "50 %"],
    [2048, "By", "2 KiB"],
    [3, "", "3"],
    [NIGHT / 1000, "timestamp", "01:17:33"],
  ];
  for (const [value, unit, text] of cases) assert.equal(plain(f.formatValue(value, unit)), text);
});

test("an axis repeats only the units that change with the size", () => {
  assert.equal(plain(f.formatTick(0.5, "s")), "500 ms");
  assert.equal(f.titleUnit("s"), "");
  assert.equal(f.formatTick(20, "{request}"), "20");
  assert.equal(f.titleUnit("{request}"), "requests");
});

test("spans name their two largest parts", () => {
  const cases = [
    [0, "0 s"],
    [-5000, "0 s"],
    [12_400, "12 s"],
    [252_000, "4 min 12 s"],
    [3_600_000, "1 h"],
    [3_605_000, "1 h"],
    [7_380_000, "2 h 3 min"],
    [86_400_000 * 2 + 3_600_000 * 3, "2 d 3 h"],
  ];
  for (const [ms, text] of cases) assert.equal(plain(f.formatSpan(ms)), text);
  assert.equal(plain(f.formatAgo(NIGHT - 252_000, NIGHT)), "4 min 12 s ago");
  assert.equal(f.formatAgo(NIGHT - 400, NIGHT), "just now");
});

test("moments in local time with UTC beside it", () => {
  assert.equal(f.formatMoment(NIGHT), "2026-03-29 01:17:33 CET (00:17:33 UTC)");
  assert.equal(f.formatMoment(AFTER), "2026-03-29 03:00:00 CEST (01:00:00 UTC)");
  assert.equal(f.formatMoment(Date.UTC(2026, 2, 28, 23, 30)), "2026-03-29 00:30:00 CET (2026-03-28 23:30:00 UTC)");
  assert.equal(f.formatRecent(NIGHT, AFTER), "01:17:33 CET (00:17:33 UTC)");
  assert.equal(f.formatRecent(NIGHT - 86_400_000, AFTER), "2026-03-28 01:17:33 CET (00:17:33 UTC)");
});

test("UTC stamps within a text become local", () => {
  const text = "last progress at 2026-03-29T00:17:33.250Z, sent 2026-03-29T01:00:00Z";
  assert.equal(
    f.localTimes(text, AFTER),
    "last progress at 01:17:33 CET (00:17:33 UTC), sent 03:00:00 CEST (01:00:00 UTC)",
  );
  assert.equal(f.localTimes("no stamp: 2026-03-29", AFTER), "no stamp: 2026-03-29");
});

test("axis labels show seconds, minutes or days, and where a day begins", () => {
  const midnight = Date.UTC(2026, 2, 28, 23) / 1000;
  assert.deepEqual(f.axisTimes([NIGHT / 1000, NIGHT / 1000 + 5], 5), ["01:17:33", "01:17:38"]);
  assert.deepEqual(f.axisTimes([midnight - 1800, midnight, midnight + 1800], 1800), ["23:30", "29 Mar\n00:00", "00:30"]);
  assert.deepEqual(f.axisTimes([midnight, midnight + 86_400], 86_400), ["29 Mar", "30 Mar"]);
});

test("plural", () => {
  assert.equal(f.plural(1, "open incident"), "1 open incident");
  assert.equal(f.plural(0, "engine"), "0 engines");
});
