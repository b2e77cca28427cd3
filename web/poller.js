/** Calls a loader again and again: never two at once, not while the page is hidden, at once when it is shown again. */

const RETRY_MS = 5000;

/**
 * @template T
 * @typedef {{load: (signal: AbortSignal) => Promise<T>, periodMs: number | null, onData: (data: T) => void,
 *   onError: (error: any) => void}} Polling `periodMs` null: until it succeeds once
 */

/** Where time and visibility come from; tests have their own. */
const BROWSER = {
  page: globalThis.document,
  /** @param {() => void} run @param {number} ms @returns {unknown} */
  timer: (run, ms) => setTimeout(run, ms),
  /** @param {any} id */
  cancel: (id) => clearTimeout(id),
};

/** @template T */
export class Poller {
  /** @param {Polling<T>} polling @param {typeof BROWSER} world */
  constructor(polling, world = BROWSER) {
    this.polling = polling;
    this.world = world;
    this.abort = new AbortController();
    this.running = false;
    this.finished = false;
    /** @type {unknown} */
    this.pending = null;
    this.onVisible = () => this.poll();
  }

  start() {
    this.world.page.addEventListener("visibilitychange", this.onVisible);
    this.poll();
  }

  stop() {
    this.world.page.removeEventListener("visibilitychange", this.onVisible);
    this.world.cancel(this.pending);
    this.abort.abort();
  }

  async poll() {
    const { load, periodMs, onData, onError } = this.polling;
    const { signal } = this.abort;
    if (this.running || this.finished || this.world.page.hidden || signal.aborted) return;
    this.world.cancel(this.pending);
    this.running = true;
    let next = periodMs;
    try {
      const data = await load(signal);
      if (!signal.aborted) onData(data);
    } catch (error) {
      if (!signal.aborted) onError(error);
      next ??= RETRY_MS;
    } finally {
      this.running = false;
    }
    this.finished = next === null;
    if (!this.finished && !signal.aborted) this.pending = this.world.timer(() => this.poll(), next);
  }
}
