// One route: its link and device, its clients, its last log lines, and what may be done to it.

import { get, ofRoute, post } from "/page/api.js";
import { carryOut } from "/page/dialogs.js";
import { make, one, setText, show } from "/page/dom.js";
import { age, bytes, bytesOrNone, count, rate } from "/page/format.js";
import { refresh } from "/page/live.js";
import { append, fill, merge } from "/page/log.js";
import { badge } from "/page/routes.js";
import { linkOf, state } from "/page/state.js";
import { Table } from "/page/table.js";

let name;
let clients;
let listeners;
let endings;

const marks = (client) => [
  client.writer ? "writer" : "", client.role === "monitor" ? "monitor" : "", client.state === "open" ? "" : client.state,
  client.user ?? "", client.tls ?? "",
].filter(Boolean).join(", ");

const CLIENTS = [
  { title: "Session", isHeader: true, text: (client) => client.session, value: (client) => client.session },
  { title: "Client", kind: "code", text: (client) => client.client ?? "local" },
  { title: "Since", kind: "number minor", text: (client) => age(client.seconds), value: (client) => client.seconds },
  { title: "Up", kind: "number", text: (client) => figure(client, "up"), value: (client) => client.up },
  { title: "Down", kind: "number", text: (client) => figure(client, "down"), value: (client) => client.down },
  {
    title: "Queued", kind: "number minor", text: (client) => bytesOrNone(client["queued-up"] + client["queued-down"]),
    value: (client) => client["queued-up"] + client["queued-down"],
  },
  { title: "Dropped", kind: "number minor", text: (client) => bytesOrNone(client.dropped), value: (client) => client.dropped },
  { title: "Listener", kind: "code minor", text: (client) => client.listen },
  { title: "Role", kind: "minor", text: marks },
  {
    title: "Actions", kind: "actions", value: null, isUnseen: true, text: () => String(state.mayChange(name)),
    paint: (cell, client) => cell.replaceChildren(...(state.mayChange(name) ? [kickButton(client)] : [])),
  },
];

const LISTENERS = [
  { title: "Address", kind: "code", isHeader: true, text: (listener) => listener.bound ?? listener.listen },
  { title: "State", text: (listener) => `${listener.state} ${age(listener.seconds)}`, value: (listener) => listener.state },
  { title: "Remark", text: (listener) => listener.error ?? listener.limited ?? "" },
];

const ENDINGS = [
  { title: "Ending", isHeader: true, text: ([word]) => word },
  { title: "Sessions", kind: "number", text: ([, number]) => number.toLocaleString("en"), value: ([, number]) => number },
];

const withRate = (all, now) => (now >= 0.5 ? `${bytes(all)}, ${rate(now)}` : bytes(all));
const figure = (client, direction) => withRate(client[direction], state.rate(client.session)[direction]);

function kickButton(client) {
  const kick = () => carryOut({
    title: `Kick session ${client.session}?`, action: "Kick", failure: "The session was not ended",
    text: `The session of ${client.client ?? "a local client"} ends. The client may connect again.`,
  }, async () => {
    const { kicked } = await post(ofRoute(name, "/kick"), { sessions: [client.session] });
    refresh();
    return kicked.length ? `Session ${client.session} was ended.` : `Session ${client.session} had ended already.`;
  });
  return make("button", { type: "button", onclick: kick, "aria-label": `Kick session ${client.session}` }, "Kick");
}

export function prepare() {
  clients = new Table(one("clients"), CLIENTS, { key: (client) => client.session, what: "client", pager: one("clients-pager") });
  listeners = new Table(one("listeners"), LISTENERS, { key: (listener) => listener.listen });
  endings = new Table(one("endings"), ENDINGS, { key: ([word]) => word, sort: 1, isDescending: true });
  one("route-kick-all").addEventListener("click", kickAll);
  one("route-reset").addEventListener("click", reset);
  one("route-release").addEventListener("click", () => (isReleased() ? reopen() : release()));
  state.addEventListener("line", ({ detail }) => {
    if (detail.route === name && !one("route-view").hidden) append(one("route-lines"), detail);
  });
}

function kickAll() {
  const number = state.route(name)?.clients.length ?? 0;
  carryOut({
    title: `Kick all clients of ${name}?`, text: `${count(number, "session")} will end. The clients may connect again.`,
    action: "Kick all", failure: "The sessions were not ended",
  }, async () => {
    const { kicked } = await post(ofRoute(name, "/kick"), { all: true });
    refresh();
    return `${count(kicked.length, "session")} ended.`;
  });
}

export function reset() {
  carryOut({
    title: `Reset the device of ${name}?`, text: "A recipe on DTR and RTS restarts the board behind the port.",
    action: "Reset", label: "Recipe, such as esp32; empty: that of device.reset", failure: "The device was not reset",
  }, async (recipe) => {
    const done = await post(ofRoute(name, "/reset"), recipe ? { recipe } : {});
    return `${name} was reset by ${done.recipe}.`;
  });
}

const isReleased = () => Boolean(state.route(name)?.state?.released);

function release() {
  carryOut({
    title: `Release the port of ${name}?`, action: "Release", failure: "The port was not released",
    text: "The gateway closes the port, so that another program can use it, until it is reopened here. Clients wait, or are ended, as device.absent says.",
  }, async () => {
    await post(ofRoute(name, "/release"));
    refresh();
    return `The port of ${name} was released.`;
  });
}

function reopen() {
  carryOut({
    title: `Reopen the port of ${name}?`, action: "Reopen", failure: "The port was not reopened",
    text: "The gateway opens the port again once it is needed. Other programs must have closed it.",
  }, async () => {
    const { link } = await post(ofRoute(name, "/reopen"));
    refresh();
    return `The link of ${name} is ${link}.`;
  });
}

export const shown = () => name;

/** What is done from now on is meant for this route. */
export function choose(route) {
  name = route;
}

/** Shows another route. */
export async function open(route) {
  choose(route);
  one("route-terminal").href = `#/routes/${encodeURIComponent(route)}/terminal`;
  setText(one("route-title"), route);
  one("route-lines").replaceChildren();
  if (state.status) draw();
  await readLines();
}

/** The lines so far; later ones come as events, some of them maybe before the answer. */
async function readLines() {
  const asked = name;
  const { lines } = await get(ofRoute(asked, "/log")).catch(() => ({ lines: [] }));
  if (asked === name) fill(one("route-lines"), merge(lines, state.lines.filter((line) => line.route === asked)));
}

export function draw() {
  const route = state.route(name);
  show(one("route-content"), Boolean(route));
  show(one("route-missing"), !route);
  show(one("route-actions"), Boolean(route) && state.mayChange(name));
  show(one("route-badge"), Boolean(route));
  show(one("route-terminal"), Boolean(route));
  if (!route) return setText(one("route-missing"), "There is no such route, or this user has no role on it.");
  setText(one("route-badge"), badge(route));
  one("route-badge").dataset.mood = linkOf(route).mood;
  show(one("route-release"), Boolean(route.state));
  setText(one("route-release"), isReleased() ? "Reopen port" : "Release port");
  one("route-kick-all").disabled = route.clients.length === 0;
  drawFacts(route);
  clients.update(route.clients);
  listeners.update(route.listeners);
  const ended = Object.entries(route.totals.ended);
  endings.update(ended);
  show(one("endings").parentElement, ended.length > 0);
  show(one("endings-title"), ended.length > 0);
  return undefined;
}

function drawFacts(route) {
  const { totals, state: link } = route;
  const now = state.rate(name);
  const facts = [
    ["Endpoint", route.endpoint],
    ["Link", route.link],
    ["Line", link?.line],
    ["Device", device(link?.device)],
    ["Clients", `${route.clients.length} of ${route["max-clients"]}${route.queued ? `, ${route.queued} in the queue` : ""}`],
    ["Up", withRate(totals.up, now.up)],
    ["Down", withRate(totals.down, now.down)],
    ["Dropped", bytes(totals.dropped)],
    ["Recording", recording(route.capture)],
    ["Line changes", totals["line-changes"] + totals["line-refusals"] ? `${totals["line-changes"]}, refused ${totals["line-refusals"]}` : undefined],
  ].filter(([, text]) => text !== undefined);
  const list = one("route-facts");
  if (list.children.length !== facts.length) {
    list.replaceChildren(...facts.map(() => make("div", {}, make("dt"), make("dd"))));
  }
  facts.forEach(([title, text], index) => {
    const [term, value] = list.children[index].children;
    setText(term, title);
    setText(value, text);
  });
}

function recording(capture) {
  if (!capture) return undefined;
  const { file, error, written, dropped } = capture;
  const missing = dropped > 0 ? `, ${bytes(dropped)} missing` : "";
  return `${error ? "stopped" : file}, ${bytes(written)} written${missing}`;
}

function device(facts) {
  if (!facts) return undefined;
  return Object.entries(facts).map(([key, value]) => `${key} ${value}`).join(", ") || undefined;
}
