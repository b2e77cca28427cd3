import assert from "node:assert/strict";
import { test } from "node:test";
import { CHARTS, COLUMNS, isDrawn, reasonFor, selectorOf } from "../../web/signals.js";

const exprOf = (panels, key, ...args) => panels.flatMap((p) => p.signals).find((s) => s.key === key).expr(...args);

test("expressions, over all engines and over one", () => {
  assert.equal(
    exprOf(COLUMNS, "ttft_p99", "", "60s"),
    "histogram_quantile(0.99, sum by (instance, le) (rate(gen_ai_server_time_to_first_token_seconds_bucket[60s])))",
  );
  assert.equal(exprOf(COLUMNS, "out", "", "60s"), "sum by (instance) (rate(llm_engine_tokens_output_total[60s]))");
  assert.equal(
    exprOf(CHARTS, "kv", selectorOf('a"b'), "60s"),
    'max by (instance) (llm_engine_kv_cache_utilization_ratio{instance="a\\"b"})',
  );
  assert.equal(
    exprOf(CHARTS, "queue_time", selectorOf("a:1"), "60s"),
    'sum by (instance) (rate(llm_engine_request_queue_duration_seconds_sum{instance="a:1"}[60s]))' +
      ' / sum by (instance) (rate(llm_engine_request_queue_duration_seconds_count{instance="a:1"}[60s]))',
  );
});

test("a signal has one expression, wherever it is drawn", () => {
  for (const panels of [COLUMNS, CHARTS]) {
    const keys = panels.flatMap((p) => p.signals).map((s) => s.key);
    assert.equal(new Set(keys).size, keys.length);
    assert.equal(new Set(panels.map((p) => p.key)).size, panels.length);
  }
});

test("what an engine lacks has a reason and is not drawn", () => {
  const engine = { unavailable: { gen_ai_server_time_to_first_token_seconds: "no histogram" } };
  const [ttft, itl] = CHARTS;
  assert.equal(reasonFor(engine, ttft.signals[0]), "no histogram");
  assert.equal(reasonFor(engine, itl.signals[0]), "");
  assert.ok(!isDrawn(engine, ttft));
  assert.ok(isDrawn(engine, itl));
});
