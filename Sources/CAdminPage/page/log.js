// Lines of the log: all of them, and those of a route.

import { get } from "/page/api.js";
import { make, one } from "/page/dom.js";
import { time } from "/page/format.js";
import { state } from "/page/state.js";

const KEPT = 500;
const LEVELS = ["info", "notice", "warning", "error", "critical"];
const MOODS = { warning: "busy", error: "bad", critical: "bad" };
/** The latest lines of the gateway, oldest first. */
let lines = [];

function item(line) {
  const { id, time: when, level, event, ...fields } = line;
  const text = Object.entries(fields).map(([key, value]) => `${key}=${plain(value)}`).join(" ");
  return make(
    "li", { data: { key: id, mood: MOODS[level] ?? "idle" } }, make("time", { datetime: when }, time(when)), " ",
    make("span", { class: "level" }, level), " ", make("strong", {}, event), " ", make("span", { class: "fields" }, text));
}

/** In quotes, where a text has spaces. */
const plain = (value) => (/[\s"]/.test(String(value)) || value === "" ? JSON.stringify(value) : String(value));

/** The newest line is the first. */
export function fill(list, all) {
  list.replaceChildren(...all.toReversed().map(item));
}

/**
 * The lines of an answer, and those that came as events before or after it was made. A line may be in both. Their times have one
 * form, so they are in order as texts.
 */
export function merge(answer, events) {
  const all = new Map([...answer, ...events].map((line) => [line.id, line]));
  return [...all.values()].sort((a, b) => (a.time < b.time ? -1 : a.time > b.time ? 1 : 0)).slice(-KEPT);
}

export function append(list, line) {
  list.prepend(item(line));
  while (list.children.length > KEPT) list.lastElementChild.remove();
}

export function prepare() {
  one("log-search").addEventListener("input", draw);
  one("log-level").addEventListener("change", draw);
  state.addEventListener("line", ({ detail }) => {
    lines = merge(lines, [detail]);
    if (!one("log-view").hidden && isMeant(detail)) append(one("log-lines"), detail);
  });
}

/** Reads the lines before the page was opened. */
export async function open() {
  const answer = await get("/api/v1/log").catch(() => ({ lines: [] }));
  lines = merge(answer.lines, lines);
  draw();
}

/** Forgets them, for another user. */
export function clear() {
  lines = [];
  draw();
}

function isMeant(line) {
  const words = one("log-search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const text = JSON.stringify(line).toLowerCase();
  return LEVELS.indexOf(line.level) >= LEVELS.indexOf(one("log-level").value) && words.every((word) => text.includes(word));
}

function draw() {
  fill(one("log-lines"), lines.filter(isMeant));
}
