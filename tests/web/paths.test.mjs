import assert from "node:assert/strict";
import { test } from "node:test";
import { fractionOf, heightsOf, isCounter, linePath, topOf } from "../../web/paths.js";

test("the top is the largest finite value", () => {
  assert.equal(topOf([[1, null, NaN, Infinity], [3, 2]]), 3);
  assert.equal(topOf([[null]], 1), 1);
});

test("a line from edge to edge, with gaps, and a dot for a lone value", () => {
  assert.equal(linePath([0, 0.5, 1], 100, 20), "M0 20L50 10L100 0");
  assert.equal(linePath([0, 0, null, 1, null, 0, 0], 60, 10), "M0 10L10 10M30 0h0M50 10L60 10");
  assert.equal(linePath([null, null], 10, 10), "");
  assert.equal(linePath([1], 10, 10), "M0 0h0");
});

test("heights run from 0 to the top, and no higher", () => {
  assert.deepEqual(heightsOf([0, 5, 10, 20, null, NaN], 10), [0, 0.5, 1, 1, null, null]);
  assert.deepEqual(heightsOf([0, 0], 0), [0, 0]);
});

test("a counter is drawn by its growth", () => {
  assert.ok(isCounter([1000, null, 1100, 1100]));
  assert.deepEqual(heightsOf([1000, 1050, 1100, 1100], 1100), [0, 0.5, 1, 1]);
  for (const gauge of [[8, 8, 8], [9, 8, 9], [1, 10, 20], [], [null]]) assert.ok(!isCounter(gauge));
});

test("the part of the axis that a span covers", () => {
  const times = [100, 150, 200];
  assert.deepEqual(fractionOf({ fromMs: 150_000, toMs: 175_000 }, times), [0.5, 0.75]);
  assert.deepEqual(fractionOf({ fromMs: 0, toMs: 900_000 }, times), [0, 1]);
  assert.equal(fractionOf({ fromMs: 0, toMs: 50_000 }, times), null);
  assert.equal(fractionOf({ fromMs: 300_000, toMs: 400_000 }, times), null);
  assert.equal(fractionOf({ fromMs: 0, toMs: 50_000 }, []), null);
});
