// The list of all routes: searched, filtered, sorted.

import { make, one, setText } from "/page/dom.js";
import { age, bytesOrNone, count, rate } from "/page/format.js";
import { linkOf, state } from "/page/state.js";
import { Table } from "/page/table.js";

const isInTrouble = (route) =>
  linkOf(route).mood === "bad" || Boolean(route.capture?.error) || route.listeners.some((one) => one.state === "waiting");

const FILTERS = [
  ["all", "all routes", () => true],
  ["problems", "with problems", isInTrouble],
  ["clients", "with clients", (route) => route.clients.length > 0],
  ["busy", "with traffic", (route) => state.rate(route.route).up + state.rate(route.route).down >= 0.5],
  ["open", "link open", (route) => (route.state ? route.state.word === "open" : route.links?.open > 0)],
  ["waiting", "link waiting", (route) => (route.state ? route.state.word === "waiting" : route.links?.waiting > 0)],
  ["closed", "link closed", (route) => (route.state ? route.state.word === "closed" : linkOf(route).word === "no links")],
];

const place = (route) => route.listeners.map((listener) => listener.bound ?? listener.listen).join(", ");

export const badge = (route) => {
  const { word, seconds } = linkOf(route);
  return seconds === undefined ? word : `${word} ${age(seconds)}`;
};

const COLUMNS = [
  {
    title: "Route", isHeader: true, text: (route) => route.route,
    paint: (cell, { route }) => cell.replaceChildren(make("a", { href: `#/routes/${encodeURIComponent(route)}` }, route)),
  },
  {
    title: "Link", text: badge, value: (route) => linkOf(route).word,
    paint: (cell, route) => {
      const { word, mood, seconds } = linkOf(route);
      cell.replaceChildren(
        make("span", { class: "badge", data: { mood } }, word),
        make("span", { class: "since" }, seconds === undefined ? "" : ` ${age(seconds)}`));
    },
  },
  {
    title: "Clients", kind: "number", text: (route) => `${route.clients.length}/${route["max-clients"]}`,
    value: (route) => route.clients.length,
  },
  { title: "Up", kind: "number", text: (route) => rate(state.rate(route.route).up), value: (route) => state.rate(route.route).up },
  { title: "Down", kind: "number", text: (route) => rate(state.rate(route.route).down), value: (route) => state.rate(route.route).down },
  {
    title: "Dropped", kind: "number minor", text: (route) => bytesOrNone(route.totals.dropped),
    value: (route) => route.totals.dropped,
  },
  { title: "Endpoint", kind: "code minor", text: (route) => route.endpoint },
  { title: "Listens on", kind: "code minor", text: place },
];

let table;

export function prepare() {
  table = new Table(one("routes"), COLUMNS, { key: (route) => route.route, what: "route", pager: one("routes-pager") });
  one("routes-filter").append(...FILTERS.map(([value, label]) => make("option", { value }, label)));
  const changed = () => {
    table.goToStart();
    draw();
  };
  one("routes-search").addEventListener("input", changed);
  one("routes-filter").addEventListener("change", changed);
}

export function draw() {
  const { routes } = state.status;
  const words = one("routes-search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const [, , isMeant] = FILTERS.find(([value]) => value === one("routes-filter").value);
  const found = routes.filter((route) => isMeant(route) && (words.length === 0 || contains(route, words)));
  table.update(found);
  setText(one("routes-count"), found.length === routes.length ? count(routes.length, "route") : `${found.length} of ${count(routes.length, "route")}`);
}

function contains(route, words) {
  const clients = route.clients.flatMap((client) => [client.client, client.user]);
  const text = [route.route, route.endpoint, place(route), linkOf(route).word, ...clients].join("\n").toLowerCase();
  return words.every((word) => text.includes(word));
}
