import assert from "node:assert/strict";
import { test } from "node:test";
import { Poller } from "../../web/poller.js";

/** A page, a timer that runs by hand, and a loader whose answers are given by hand. */
function world(periodMs = 5000) {
  const page = Object.assign(new EventTarget(), { hidden: false });
  const timers = [];
  const loads = [];
  const seen = [];
  const poller = new Poller(
    {
      load: (signal) => new Promise((resolve, reject) => loads.push({ signal, resolve, reject })),
      periodMs,
      onData: (data) => seen.push(data),
      onError: (error) => seen.push(error.message),
    },
    {
      page,
      timer: (run, ms) => timers.push({ run, ms }) - 1,
      cancel: (id) => id !== null && delete timers[id],
    },
  );
  const settle = () => new Promise((resolve) => setImmediate(resolve));
  const show = (shown) => {
    page.hidden = !shown;
    page.dispatchEvent(new Event("visibilitychange"));
  };
  const due = () => timers.filter((t) => t);
  return { poller, timers, loads, seen, settle, show, due };
}

test("waits for the answer, then for the period", async () => {
  const { poller, loads, seen, settle, due } = world();
  poller.start();
  poller.poll();
  assert.equal(loads.length, 1);
  assert.equal(due().length, 0);
  loads[0].resolve("one");
  await settle();
  assert.deepEqual(seen, ["one"]);
  assert.equal(due()[0].ms, 5000);
  due()[0].run();
  assert.equal(loads.length, 2);
});

test("goes on after an error", async () => {
  const { poller, loads, seen, settle, due } = world();
  poller.start();
  loads[0].reject(new Error("down"));
  await settle();
  assert.deepEqual(seen, ["down"]);
  assert.equal(due().length, 1);
});

test("rests while hidden and starts at once when shown", async () => {
  const { poller, loads, settle, show, due } = world();
  poller.start();
  loads[0].resolve(1);
  await settle();
  show(false);
  due()[0].run();
  assert.equal(loads.length, 1);
  show(true);
  assert.equal(loads.length, 2);
});

test("started hidden, it waits to be shown", () => {
  const { poller, loads, show } = world();
  show(false);
  poller.start();
  assert.equal(loads.length, 0);
  show(true);
  assert.equal(loads.length, 1);
});

test("without a period it ends with the first success", async () => {
  const { poller, loads, seen, settle, show, due } = world(null);
  poller.start();
  loads[0].reject(new Error("down"));
  await settle();
  assert.equal(due()[0].ms, 5000);
  due()[0].run();
  loads[1].resolve("there");
  await settle();
  show(true);
  assert.equal(loads.length, 2);
  assert.deepEqual(seen, ["down", "there"]);
});

test("stopped, it aborts and says nothing more", async () => {
  const { poller, loads, seen, settle, show, due } = world();
  poller.start();
  poller.stop();
  assert.ok(loads[0].signal.aborted);
  loads[0].resolve("late");
  await settle();
  show(true);
  assert.deepEqual([seen, due().length, loads.length], [[], 0, 1]);
});
