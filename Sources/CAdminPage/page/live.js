// Keeps the state up to date: reads the event stream, asks for the figures every two seconds, and connects again by
// itself.

import { get, readEvents, Refusal } from "/page/api.js";
import { state } from "/page/state.js";

const INTERVAL = 2000;
/** While nobody looks at the page. */
const HIDDEN_INTERVAL = 30000;
/** Time between an event and the figures after it, in which more events may come. */
const PAUSE = 250;
const RETRIES = [1000, 2000, 5000, 10000];
/** A browser has six connections to the gateway, for all tabs. One that nobody looks at gives its own back after this. */
const LINGER = 30000;

let run;

/** Call it after each log-in. `onLogIn` is called when the gateway wants credentials. */
export function start(onLogIn) {
  stop();
  run = new Run(onLogIn);
}

export function stop() {
  run?.end();
  run = undefined;
}

/** Asks for the figures soon, after something has changed. */
export const refresh = () => run?.soon();

class Run {
  #control = new AbortController();
  #timer;
  #due = Infinity;
  #isAsking = false;
  #onLogIn;
  #lastId;
  #wake = () => {};
  /** Ends the event stream while the page is hidden. */
  #rest = new AbortController();
  #restTimer;

  constructor(onLogIn) {
    this.#onLogIn = onLogIn;
    const signal = this.#control.signal;
    document.addEventListener("visibilitychange", () => this.#visibilityChanged(), { signal });
    addEventListener("online", () => this.#wake(), { signal });
    this.#plan(0);
    this.#follow();
  }

  end() {
    this.#control.abort();
    clearTimeout(this.#timer);
    clearTimeout(this.#restTimer);
    this.#wake();
  }

  get #isOver() {
    return this.#control.signal.aborted;
  }

  #visibilityChanged() {
    clearTimeout(this.#restTimer);
    if (document.hidden) {
      this.#restTimer = setTimeout(() => this.#rest.abort(), LINGER);
    } else {
      this.#plan(0);
      this.#wake();
    }
  }

  soon() {
    this.#plan(PAUSE);
  }

  // The figures

  #plan(milliseconds) {
    const due = performance.now() + milliseconds;
    if (this.#isOver || due >= this.#due) return;
    this.#due = due;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#ask(), milliseconds);
  }

  async #ask() {
    this.#due = Infinity;
    if (this.#isAsking) return;
    this.#isAsking = true;
    const began = performance.now();
    try {
      const status = await get("/api/v1/routes");
      if (!this.#isOver) state.setStatus(status);
    } catch (error) {
      // The event stream tells whether the gateway is there.
      if (error instanceof Refusal && error.status === 401) this.#logIn();
    }
    this.#isAsking = false;
    // A gateway with thousands of routes, or one far away, is asked less often.
    const pause = 10 * (performance.now() - began);
    this.#plan(Math.max(document.hidden ? HIDDEN_INTERVAL : INTERVAL, pause));
  }

  // The events

  async #follow() {
    for (let tries = 0; !this.#isOver; tries += 1) {
      if (document.hidden && this.#rest.signal.aborted) {
        await new Promise((resolve) => { this.#wake = resolve; });
        continue;
      }
      this.#rest = new AbortController();
      let reason = "The gateway has ended the connection.";
      try {
        await readEvents({
          after: this.#lastId,
          signal: AbortSignal.any([this.#control.signal, this.#rest.signal]),
          onOpen: () => {
            tries = 0;
            // Where none has come yet, later ones begin with the first that the gateway keeps.
            this.#lastId ??= "none";
            this.#open();
          },
          onEvent: (event) => this.#take(event),
        });
      } catch (error) {
        reason = error instanceof Refusal ? error.message : "The gateway does not answer.";
        if (error instanceof Refusal && error.status === 401) this.#logIn();
      }
      if (this.#isOver) return;
      if (this.#rest.signal.aborted) continue;
      state.setConnection("lost", reason);
      await this.#pause(RETRIES[Math.min(tries, RETRIES.length - 1)]);
    }
  }

  async #open() {
    state.setConnection("live");
    this.#plan(0);
    try {
      state.setUser(await get("/api/v1/user"));
    } catch {
      // The stream ends as well, and is opened again.
    }
  }

  #take({ id, event, data }) {
    if (id !== undefined) {
      this.#lastId = id;
      state.addLine({ id, ...data });
    }
    if (event === "reloaded") get("/api/v1/user").then((user) => state.setUser(user), () => {});
    this.soon();
  }

  #pause(milliseconds) {
    return new Promise((resolve) => {
      this.#wake = resolve;
      setTimeout(resolve, milliseconds);
    });
  }

  #logIn() {
    if (this.#isOver) return;
    this.end();
    this.#onLogIn();
  }
}
