// Requests to the gateway. The credentials stay in this tab, and go out as an Authorization header: there are no cookies.

const KEY = "authorization";
const LONGEST_ANSWER = 60000;
let authorization = sessionStorage.getItem(KEY);
/** Aborted when other credentials are used, so that no answer for one user gets to the next. */
let session = new AbortController();

/** The gateway refused a request. `detail` says why, and what to do. */
export class Refusal extends Error {
  constructor(status, problem) {
    super(problem?.detail ?? `The gateway answered ${status}.`);
    this.status = status;
    this.problems = problem?.problems ?? [];
  }
}

/** The user has logged out, or others have logged in, before the answer came. */
export class SessionEnd extends Error {}

export const isLoggedIn = () => authorization !== null;

export function useToken(token) {
  use(`Bearer ${token}`);
}

export function usePassword(user, password) {
  const text = new TextEncoder().encode(`${user}:${password}`);
  use(`Basic ${btoa(String.fromCharCode(...text))}`);
}

function use(credentials) {
  session.abort(new SessionEnd());
  session = new AbortController();
  authorization = credentials;
}

/** Call it when the gateway has accepted them. */
export function keepCredentials() {
  if (authorization) sessionStorage.setItem(KEY, authorization);
}

export function forgetCredentials() {
  use(null);
  sessionStorage.removeItem(KEY);
}

/** With `X-Requested-With` the gateway leaves it to this page to ask for a password. */
function request(path, signal, { method = "GET", content, headers = {} } = {}) {
  const fields = { "X-Requested-With": "page", ...headers };
  if (authorization) fields.Authorization = authorization;
  if (content !== undefined) fields["Content-Type"] = "application/json";
  const body = content === undefined ? undefined : JSON.stringify(content);
  return fetch(path, { method, headers: fields, body, signal, cache: "no-store", redirect: "error" });
}

async function answer(response) {
  if (response.ok) return response.json();
  throw new Refusal(response.status, await response.json().catch(() => undefined));
}

async function ask(path, options) {
  const ends = session.signal;
  try {
    return await answer(await request(path, AbortSignal.any([ends, AbortSignal.timeout(LONGEST_ANSWER)]), options));
  } finally {
    ends.throwIfAborted();
  }
}

export const get = (path) => ask(path);
export const post = (path, content = {}) => ask(path, { method: "POST", content });

export const ofRoute = (name, what = "") => `/api/v1/routes/${encodeURIComponent(name)}${what}`;

/**
 * Reads the event stream until it ends. `onEvent` gets the name, the data and the id of each event. Throws if the stream
 * can't be opened, breaks, or is silent for longer than the gateway ever is.
 */
export async function readEvents({ after, onOpen, onEvent, signal }) {
  const control = new AbortController();
  signal.addEventListener("abort", () => control.abort());
  let silence;
  const heard = () => {
    clearTimeout(silence);
    silence = setTimeout(() => control.abort(new Error("The gateway is silent.")), 40000);
  };
  heard();
  try {
    const headers = after === undefined ? {} : { "Last-Event-ID": after };
    const response = await request("/api/v1/events", control.signal, { headers });
    if (!response.ok) await answer(response);
    onOpen();
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      heard();
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const event = parse(block);
        if (event.data !== undefined) onEvent(event);
      }
    }
  } finally {
    clearTimeout(silence);
  }
}

function parse(block) {
  const event = {};
  for (const line of block.split("\n")) {
    const colon = line.indexOf(": ");
    if (colon > 0) event[line.slice(0, colon)] = line.slice(colon + 2);
  }
  if (event.data !== undefined) event.data = JSON.parse(event.data);
  return event;
}
