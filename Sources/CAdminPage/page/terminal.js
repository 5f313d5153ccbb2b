// A terminal on a route: what its device sends and what the user types, the line and its signals, and who may write.

import { Channel } from "/page/channel.js";
import { announce, make, one, setText, show, toast } from "/page/dom.js";
import { bytes, count } from "/page/format.js";
import { reset } from "/page/route.js";
import { Screen } from "/page/screen.js";
import { state } from "/page/state.js";

const SETTINGS = ["baud", "data", "parity", "stop", "flow"];
const fieldOf = (key) => one(key === "stop" ? "terminal-stop-bits" : `terminal-${key}`);
const ENDS = { cr: "\r", lf: "\n", crlf: "\r\n" };
const PIECE = 16 << 10;
const encoder = new TextEncoder();

/** The class of xterm.js: undefined until it is loaded, null if this build has none. */
let Terminal;
let name;
let channel;
let screen;
let facts;
/** Since the terminal is shown. */
let wasOpen = false;
/** Aborted when a text or a file is not to be sent any more. */
let sending;

const NO_FACTS = { role: "writer", session: undefined, writer: undefined, outputs: { dtr: null, rts: null, break: false }, dropped: 0, line: undefined };

async function load() {
  if (Terminal) return;  // else the gateway may not have answered
  try {
    ({ Terminal } = await import("/page/xterm.js"));
    const sheet = make("link", { rel: "stylesheet", href: "/page/xterm.css" });
    const isLoaded = new Promise((resolve, reject) => {
      sheet.addEventListener("load", resolve);
      sheet.addEventListener("error", reject);
    });
    document.head.append(sheet);
    await isLoaded;
  } catch {
    Terminal = null;
  }
}

export function prepare() {
  one("terminal-line").addEventListener("submit", (event) => {
    event.preventDefault();
    setLine();
  });
  for (const signal of ["dtr", "rts"]) one(`terminal-${signal}`).addEventListener("click", () => toggle(signal));
  one("terminal-break").addEventListener("click", () => request("break", { ms: 250 }, "A break of 250 ms was sent."));
  one("terminal-purge").addEventListener("click", () => request("purge", { what: "both" }, "What was on its way is discarded."));
  one("terminal-reset").addEventListener("click", () => reset());
  one("terminal-writer").addEventListener("click", () => {
    request("writer", { wish: facts.writer?.mine ? "leave" : "take" }, facts.writer?.mine ? "Others may send now." : "You may send now.");
  });
  one("terminal-again").addEventListener("click", () => channel?.connect());
  one("terminal-hex").addEventListener("change", ({ target }) => screen?.setHex(target.checked));
  one("terminal-times").addEventListener("change", ({ target }) => { if (screen) screen.hasTimes = target.checked; });
  one("terminal-lf").addEventListener("change", ({ target }) => screen?.newLineAtLF(target.checked));
  one("terminal-clear").addEventListener("click", () => screen?.clear());
  one("terminal-save").addEventListener("click", save);
  one("terminal-file").addEventListener("change", ({ target }) => {
    if (target.files.length) sendFile(target.files[0]);
    target.value = "";
  });
  one("terminal-send-file").addEventListener("click", () => one("terminal-file").click());
  one("terminal-stop").addEventListener("click", () => sending?.abort());
  const search = one("terminal-search");
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    if (!screen?.find(search.value, event.shiftKey)) announce("not found");
    search.setAttribute("aria-invalid", String(Boolean(search.value) && !screen?.selection));
  });
  // A text from the clipboard has its own way, by lines; xterm.js must not get it as well.
  one("terminal-screen").addEventListener("paste", (event) => {
    event.preventDefault();
    event.stopPropagation();
    paste(event.clipboardData.getData("text/plain"));
  }, true);
  new ResizeObserver(() => screen?.fit()).observe(one("terminal-screen"));
}

/** Shows the terminal of a route, which is connected until `close`. */
export async function open(route) {
  if (route === name) return;
  close();
  name = route;
  facts = { ...NO_FACTS };
  setText(one("terminal-title"), `Terminal on ${route}`);
  one("terminal-back").href = `#/routes/${encodeURIComponent(route)}`;
  await load();
  if (name !== route) return;
  show(one("terminal-missing"), Terminal === null);
  show(one("terminal-content"), Terminal !== null);
  if (Terminal === null) return;
  screen = new Screen(Terminal, one("terminal-screen"), type, () => one("terminal-search").focus());
  screen.isHex = one("terminal-hex").checked;
  screen.hasTimes = one("terminal-times").checked;
  screen.newLineAtLF(one("terminal-lf").checked);
  channel = new Channel(route);
  channel.addEventListener("bytes", ({ detail }) => { if (screen.write(detail)) draw(); });
  channel.addEventListener("text", ({ detail }) => take(detail));
  channel.addEventListener("state", ({ detail }) => connectionChanged(detail));
  channel.connect();
  screen.focus();
  draw();
}

export function close() {
  name = undefined;
  sending?.abort();
  channel?.close();
  screen?.dispose();
  channel = undefined;
  screen = undefined;
  wasOpen = false;
}

// The connection

function connectionChanged({ word, reason }) {
  const texts = { connecting: "connecting", open: "connected", lost: `disconnected: ${reason} Connecting again.`, ended: `disconnected: ${reason}` };
  setText(one("terminal-state"), texts[word]);
  one("terminal-state").dataset.mood = { open: "good", connecting: "busy" }[word] ?? "bad";
  show(one("terminal-again"), word === "ended");
  if (word === "open") {
    if (wasOpen) screen.notice("connected again");
    wasOpen = true;
    facts = { ...NO_FACTS };
    // Of another connection, or of another route.
    show(one("terminal-signals"), false);
    for (const id of ["terminal-modem", "terminal-errors"]) setText(one(id), "");
    channel.ask("watch", { on: true });
  } else if (word !== "connecting" && wasOpen) {
    sending?.abort();
    screen.notice(`disconnected: ${reason}`);
    if (word === "ended") wasOpen = false;
  }
  draw();
}

function take(text) {
  switch (text.event) {
    case "hello":
      facts.role = text.role;
      facts.session = text.session;
      if (text.banner) screen.notice(text.banner.trim());
      break;
    case "link":
      setText(one("terminal-link"), text.reason ? `device ${text.state}: ${text.reason}` : `device ${text.state}`);
      one("terminal-link").dataset.mood = { open: "good", waiting: "bad" }[text.state] ?? "busy";
      // Asked again: a port that was not open has no signals to watch.
      if (text.state === "open") channel.ask("watch", { on: true });
      else setText(one("terminal-modem"), "");  // nobody knows its lines now
      break;
    case "line": showLine(text); break;
    case "outputs": facts.outputs = text; break;
    case "modem": showSignals(["cts", "dsr", "dcd", "ri"].map((line) => [line.toUpperCase(), text[line] ? "on" : "off"]), "terminal-modem"); break;
    case "errors": showSignals(["breaks", "framing", "parity", "overruns", "bufferOverruns"].map((word) => [word === "bufferOverruns" ? "buffer overruns" : word, text[word]]), "terminal-errors"); break;
    case "writer": facts.writer = text; break;
    case "drops": facts.dropped = text.total; break;
    case "queue": setText(one("terminal-state"), `in the queue, place ${text.place}`); break;
    case "lost": toast(`${count(text.count, "event")} of the line were lost.`); break;
    default: break;
  }
  draw();
}

const maySend = () => channel?.isOpen && facts.role === "writer" && (facts.writer?.mine ?? true);

function whyNot() {
  if (!channel?.isOpen) return "There is no connection.";
  if (facts.role !== "writer") return "You may only look on.";
  return facts.writer.holder === null ? "Take the writer role to send." : `Session ${facts.writer.holder} has the writer role.`;
}

function draw() {
  const isWriter = maySend();
  for (const element of document.querySelectorAll("#terminal-content [data-writes]")) element.disabled = !isWriter;
  for (const signal of ["dtr", "rts"]) one(`terminal-${signal}`).setAttribute("aria-pressed", String(facts.outputs[signal] === true));
  const { writer } = facts;
  show(one("terminal-writer"), Boolean(writer) && facts.role === "writer");
  setText(one("terminal-writer"), writer?.mine ? "Give up the writer role" : "Take the writer role");
  const holder = writer && (writer.holder === null ? "nobody has the writer role" : writer.mine ? "you have the writer role" : `session ${writer.holder} has the writer role`);
  setText(one("terminal-role"), facts.role === "monitor" ? "you may only look on" : holder ?? "");
  const lost = facts.dropped + (screen?.skipped ?? 0);
  setText(one("terminal-drops"), lost ? `${bytes(lost)} dropped: this browser is slower than the device` : "");
  show(one("terminal-reset"), state.mayChange(name));
  show(one("terminal-stop"), Boolean(sending));
}

// The line

function showLine(line) {
  facts.line = line;
  show(one("terminal-line"), true);
  for (const key of SETTINGS) fieldOf(key).value = String(line[key]);
}

async function setLine() {
  const keys = {};
  for (const key of SETTINGS) {
    const { value } = fieldOf(key);
    if (value !== String(facts.line?.[key])) keys[key] = key === "baud" || key === "data" ? Number(value) : value;
  }
  if (Object.keys(keys).length === 0) return;
  const reply = await request("line", keys, "The line is set.");
  if (reply.line) showLine(reply.line);
}

function toggle(signal) {
  const on = facts.outputs[signal] !== true;
  request(signal, { on }, "").then((reply) => {
    if (reply.ok) facts.outputs = { ...facts.outputs, [signal]: on };
    draw();
  });
}

async function request(word, keys, success) {
  const reply = await channel.ask(word, keys);
  toast(reply.ok ? success : `Not done: ${reply.error}.${reply.suggestion ? ` ${reply.suggestion}` : ""}`);
  return reply;
}

function showSignals(pairs, id) {
  show(one("terminal-signals"), true);
  const text = pairs.map(([title, value]) => `${title} ${value}`).join(", ");
  setText(one(id), text);
}

// Sending

/** A key, or more of them; xterm.js has CR for Enter. */
function type(text) {
  send(encoder.encode(text.replaceAll("\r", ENDS[one("terminal-end").value])));
}

function send(data) {
  if (!maySend()) {
    toast(whyNot());
    return false;
  }
  channel.send(data);
  if (one("terminal-echo").checked) echo(data);
  return true;
}

function echo(data) {
  const text = new TextDecoder().decode(data);
  screen.write(encoder.encode(text.replace(/\r\n|\r|\n/g, "\r\n")));
}

/** Line by line, with the pause that slow devices need. */
function paste(text) {
  const lines = text.split(/(?<=\r\n|\n|\r(?!\n))/);
  const pause = Number(one("terminal-delay").value);
  return during(`Sending ${count(lines.length, "line")}.`, async (signal) => {
    for (const line of lines) {
      if (signal.aborted || !send(encoder.encode(line.replace(/\r\n|\r|\n/, ENDS[one("terminal-end").value])))) return false;
      if (!await channel?.room()) return false;
      if (pause > 0 && line !== lines.at(-1)) await sleep(pause, signal);
    }
    return !signal.aborted;
  });
}

function sendFile(file) {
  return during(`Sending ${file.name}.`, async (signal) => {
    for (let start = 0; start < file.size; start += PIECE) {
      const data = new Uint8Array(await file.slice(start, start + PIECE).arrayBuffer());
      if (signal.aborted || !send(data) || !await channel?.room()) return false;
      setText(one("terminal-progress"), `${bytes(Math.min(file.size, start + PIECE))} of ${bytes(file.size)}`);
    }
    return !signal.aborted;
  });
}

/** One text or file at a time. */
async function during(text, work) {
  if (sending) return toast("Wait until the text or file before is sent, or stop it.");
  if (!maySend()) return toast(whyNot());
  const control = new AbortController();
  sending = control;
  setText(one("terminal-progress"), text);
  draw();
  let isDone = false;
  try {
    isDone = await work(control.signal);
  } catch {
    toast("The file can't be read any more.");
  }
  sending = undefined;
  setText(one("terminal-progress"), isDone ? "" : "Stopped: not all was sent.");
  if (name !== undefined) draw();
  return isDone;
}

function sleep(milliseconds, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    }, { once: true });
  });
}

function save() {
  const url = URL.createObjectURL(screen.session);
  const stamp = new Date().toISOString().replace(/[:.]/g, "-");
  const link = make("a", { href: url, download: `${name}-${stamp}.bin` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

/** What is on the screen, for scripts beside the page. */
export const lines = () => screen?.lines ?? [];
export const selection = () => screen?.selection ?? "";
