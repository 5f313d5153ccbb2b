// The connection of a terminal to its route: `baudway.v1` over a WebSocket of this listener. It connects again by itself,
// except after an ending that somebody meant.

import { ofRoute, post, Refusal, SessionEnd } from "/page/api.js";

const RETRIES = [500, 1000, 2000, 5000, 10000];
/** After these the user decides: two pages that replace each other would never stop. */
const MEANT = new Set(["denied", "login-failed", "replaced", "kicked"]);
/** Bytes that the browser may still have to send before a file or a text goes on. */
const MOST_UNSENT = 64 << 10;

/**
 * Events, each with a `detail`: "bytes" (a Uint8Array), "text" (an object of the control channel), and "state" with
 * `word` "connecting", "open", "lost" or "ended", and a `reason` for people.
 */
export class Channel extends EventTarget {
  #route;
  #socket;
  #timer;
  #tries = 0;
  #isOver = false;
  #end;
  #asked = 0;
  #replies = new Map();

  constructor(route) {
    super();
    this.#route = route;
  }

  get isOpen() {
    return this.#socket?.readyState === WebSocket.OPEN;
  }

  #tell(name, detail) {
    if (!this.#isOver) this.dispatchEvent(new CustomEvent(name, { detail }));
  }

  async connect() {
    clearTimeout(this.#timer);
    this.#end = undefined;
    this.#tell("state", { word: "connecting", reason: "" });
    let ticket;
    try {
      ({ ticket } = await post(ofRoute(this.#route, "/terminal")));
    } catch (error) {
      if (error instanceof SessionEnd) return;
      const isMeant = error instanceof Refusal && error.status < 500 && error.status !== 429;
      this.#lost(error instanceof Refusal ? error.message : "The gateway does not answer.", isMeant);
      return;
    }
    if (this.#isOver) return;
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const url = `${scheme}//${location.host}${ofRoute(this.#route, "/terminal")}`;
    const socket = new WebSocket(url, ["baudway.v1", `ticket.${ticket}`]);
    socket.binaryType = "arraybuffer";
    let wasOpen = false;
    socket.addEventListener("open", () => {
      wasOpen = true;
      this.#tries = 0;
      this.#tell("state", { word: "open", reason: "" });
    });
    socket.addEventListener("message", ({ data }) => {
      if (typeof data === "string") this.#take(JSON.parse(data));
      else this.#tell("bytes", new Uint8Array(data));
    });
    socket.addEventListener("close", () => {
      this.#fail();
      const { word, reason } = this.#end ?? {};
      // A browser does not show why a WebSocket was refused; a full route is the usual reason.
      const cause = word ? `${word}${reason ? `: ${reason}` : ""}` : wasOpen ? "The connection is lost." : "The route takes no more clients now.";
      this.#lost(cause, MEANT.has(word));
    });
    this.#socket = socket;
  }

  #lost(reason, isMeant) {
    if (this.#isOver) return;
    this.#tell("state", { word: isMeant ? "ended" : "lost", reason });
    if (isMeant) return;
    this.#timer = setTimeout(() => this.connect(), RETRIES[Math.min(this.#tries, RETRIES.length - 1)]);
    this.#tries += 1;
  }

  #take(text) {
    if (text.event === "end") this.#end = text;
    if (text.reply === undefined) return this.#tell("text", text);
    this.#replies.get(text.reply)?.(text);
    this.#replies.delete(text.reply);
    return undefined;
  }

  #fail() {
    for (const done of this.#replies.values()) done({ ok: false, error: "the connection is lost" });
    this.#replies.clear();
  }

  /** The reply to a request of the control channel. */
  ask(request, keys = {}) {
    if (!this.isOpen) return Promise.resolve({ ok: false, error: "not connected" });
    this.#asked += 1;
    const id = this.#asked;
    this.#socket.send(JSON.stringify({ request, id, ...keys }));
    return new Promise((done) => this.#replies.set(id, done));
  }

  /** Sends bytes at once; false if there is no connection. */
  send(bytes) {
    if (!this.isOpen) return false;
    this.#socket.send(bytes);
    return true;
  }

  /** Waits until the browser has sent most of what it has. */
  async room() {
    while (this.isOpen && this.#socket.bufferedAmount > MOST_UNSENT) await new Promise((resolve) => { setTimeout(resolve, 20); });
    return this.isOpen;
  }

  close() {
    this.#isOver = true;
    clearTimeout(this.#timer);
    this.#fail();
    this.#socket?.close();
  }
}
