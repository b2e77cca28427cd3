/** Preact hooks that several views share. */

import { now } from "./api.js";
import { Poller } from "./poller.js";
import { parseRoute } from "./route.js";
import { useEffect, useLayoutEffect, useReducer, useState } from "./vendor/htm/standalone.module.js";

/** The current route; follows the address. */
export function useRoute() {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const follow = () => setHash(location.hash);
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  return parseRoute(hash);
}

/** Server time, once a second while the page is shown. */
export function useNow() {
  const [at, setAt] = useState(now());
  useEffect(() => {
    const timer = setInterval(() => document.hidden || setAt(now()), 1000);
    return () => clearInterval(timer);
  }, []);
  return at;
}

/**
 * Poll `load` from the first render on, and anew whenever `inputs` change.
 * @template T
 * @param {(signal: AbortSignal) => Promise<T>} load @param {number | null} periodMs null: once @param {unknown[]} inputs
 * @returns {{data: T | null, atMs: number, error: any, failedSinceMs: number, again: () => void}}
 *   `data` stays what it was while polls fail; `atMs` is when it came
 */
export function usePoll(load, periodMs, inputs) {
  const [round, again] = useReducer((/** @type {number} */ n) => n + 1, 0);
  const [state, setState] = useState({ data: null, atMs: 0, error: null, failedSinceMs: 0 });
  useEffect(() => {
    const poller = new Poller({
      load,
      periodMs,
      onData: (data) => setState({ data, atMs: now(), error: null, failedSinceMs: 0 }),
      onError: (error) => setState((s) => ({ ...s, error, failedSinceMs: s.failedSinceMs || now() })),
    });
    poller.start();
    return () => poller.stop();
  }, [...inputs, periodMs, round]);
  return { ...state, again };
}

/** Width of `ref`'s element in CSS pixels, followed as it changes. @param {{current: HTMLElement | null}} ref */
export function useWidth(ref) {
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    observer.observe(ref.current);
    setWidth(Math.floor(ref.current.getBoundingClientRect().width));
    return () => observer.disconnect();
  }, []);
  return width;
}

/** Run `change` whenever the colours on the page may have changed. @param {() => void} change */
export function useThemeChange(change) {
  useEffect(() => {
    const observer = new MutationObserver(change);
    observer.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", change);
    return () => {
      observer.disconnect();
      dark.removeEventListener("change", change);
    };
  }, []);
}
