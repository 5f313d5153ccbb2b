// What the page knows of the gateway: the latest answers, and what follows from the one before: rates, recent losses.
// Views read it, and are called when it has changed.

const KEPT_LINES = 500;
/** How long a loss counts as a problem, in milliseconds. */
const RECENT = 60000;

class State extends EventTarget {
  /** The answer of /api/v1/routes; undefined before the first one. */
  status;
  /** When it came, by performance.now(). */
  received = 0;
  /** The answer of /api/v1/user. */
  user = { routes: {} };
  /** "connecting", "live" or "lost"; and since when. */
  connection = { word: "connecting", since: performance.now(), reason: "" };
  /** The latest lines of the log that came as events, oldest first, each with its id. */
  lines = [];
  #rates = new Map();
  #losses = new Map();

  setStatus(status) {
    const [before, last] = [this.status, this.received];
    this.received = performance.now();
    this.status = status;
    const seconds = before ? status.seconds - before.seconds : 0;
    this.#rates = new Map();
    // Of an earlier process, there is nothing to compare with.
    if (before?.pid === status.pid && seconds > 0) this.#compare(before, status, seconds);
    else if (last) this.#losses.clear();
    this.#tell("status");
  }

  #compare(before, status, seconds) {
    const earlier = new Map(before.routes.map((route) => [route.route, route]));
    for (const route of status.routes) {
      const old = earlier.get(route.route);
      if (!old) continue;
      this.#rates.set(route.route, rates(old.totals, route.totals, seconds));
      if (route.totals.dropped > old.totals.dropped) this.#losses.set(route.route, this.received);
      if (route.capture?.dropped > old.capture?.dropped) this.#losses.set(recordingOf(route.route), this.received);
      const clients = new Map(old.clients.map((client) => [client.session, client]));
      for (const client of route.clients) {
        const was = clients.get(client.session);
        if (was) this.#rates.set(client.session, rates(was, client, seconds));
      }
    }
  }

  setUser(user) {
    this.user = user;
    this.#tell("user");
  }

  setConnection(word, reason = "") {
    if (word === this.connection.word && reason === this.connection.reason) return;
    const since = word === this.connection.word ? this.connection.since : performance.now();
    this.connection = { word, since, reason };
    this.#tell("connection");
  }

  addLine(line) {
    this.lines.push(line);
    if (this.lines.length > KEPT_LINES) this.lines.splice(0, this.lines.length - KEPT_LINES);
    this.dispatchEvent(new CustomEvent("line", { detail: line }));
  }

  /** For a log-in of another user. */
  clear() {
    this.status = undefined;
    this.received = 0;
    this.user = { routes: {} };
    this.lines = [];
    this.#rates.clear();
    this.#losses.clear();
  }

  route(name) {
    return this.status?.routes.find((route) => route.route === name);
  }

  /** Bytes a second of a route, by name, or of a client, by session. */
  rate(key) {
    return this.#rates.get(key) ?? { up: 0, down: 0 };
  }

  /** Of a route, by name, or of its recording. */
  hasRecentLoss(key) {
    return this.received - (this.#losses.get(key) ?? -Infinity) < RECENT;
  }

  mayChange(route) {
    return this.user.routes[route] === "admin";
  }

  get mayReload() {
    return this.user.role === "admin";
  }

  #tell(what) {
    this.dispatchEvent(new Event(what));
  }
}

/** No route has such a name. */
export const recordingOf = (route) => `recording of ${route}`;

function rates(before, now, seconds) {
  return { up: Math.max(0, now.up - before.up) / seconds, down: Math.max(0, now.down - before.down) / seconds };
}

/** The word for a route's link, what it means for colours, and how long. */
export function linkOf(route) {
  if (route.stuck) return { word: "no answer", mood: "bad" };
  if (route.state) {
    const moods = { open: "good", closed: "idle", waiting: "bad" };
    const { word, released, seconds } = route.state;
    return released ? { word: "released", mood: "busy", seconds } : { word, mood: moods[word] ?? "busy", seconds };
  }
  const some = Object.entries(route.links ?? {}).filter(([, number]) => number > 0);
  if (some.length === 0) return { word: "no links", mood: "idle" };
  const isBad = some.some(([word]) => word === "waiting");
  return { word: some.map(([word, number]) => `${number} ${word}`).join(", "), mood: isBad ? "bad" : "good" };
}

export const state = new State();
