// What is wrong, since when, and what to do: from the state alone.

import { announce, make, one, reconcile, setText, show } from "/page/dom.js";
import { age, bytes, count } from "/page/format.js";
import { recordingOf, state } from "/page/state.js";

const FEW = 6;
/** More of them in the document help nobody: the list of routes has a filter. */
const MANY = 100;
const collator = new Intl.Collator("en", { numeric: true });
let isWhole = false;
let shownRoute;
let known = new Map();

/**
 * Problems of the gateway and its routes, the worst first. `seconds` is undefined where the gateway does not know since
 * when.
 */
export function find(status) {
  const problems = [];
  const add = (problem) => problems.push(problem);
  if (status["reload-failed"]) {
    const { seconds, problems: lines, more = 0 } = status["reload-failed"];
    add({
      key: "reload", isBad: true, title: "The last reload changed nothing: the configuration has mistakes", seconds,
      details: more > 0 ? [...lines, `and ${more} more`] : lines,
      advice: "Correct the file, then reload. Until then the previous configuration is in force.",
    });
  }
  for (const fault of status["certificate-faults"] ?? []) {
    add({
      key: `certificate ${fault}`, isBad: true, title: "A certificate file can't be used", details: [fault],
      advice: "Correct the file, then reload. The previous certificate stays in use.",
    });
  }
  for (const listener of status.admin ?? []) ofListener(listener, undefined, add);
  for (const route of status.routes) ofRoute(route, add);
  // Those that stay keep their places, however long they last.
  return problems.sort((a, b) => Number(b.isBad ?? false) - Number(a.isBad ?? false) || collator.compare(a.title, b.title));
}

function ofListener(listener, route, add) {
  const what = route ?? "The admin listener";
  if (listener.state === "waiting") {
    add({
      key: `listen ${route} ${listener.listen}`, route, isBad: true, title: `${what} does not listen on ${listener.listen}`,
      seconds: listener.seconds, details: [listener.error],
      advice: `End the program that has the address, or change it. ${nextTry(listener.retry)}`,
    });
  }
  if (listener.limited) {
    add({
      key: `limited ${route} ${listener.listen}`, route, title: `Not all clients reach ${what} on ${listener.listen}`,
      details: [listener.limited],
    });
  }
}

function ofRoute(route, add) {
  const name = route.route;
  if (route.stuck) {
    add({
      key: `stuck ${name}`, route: name, isBad: true, title: `${name} does not answer`,
      details: ["A thread of the gateway has not answered within a second; figures are missing."],
      advice: "Restart the gateway if this stays.",
    });
  }
  const link = route.state;
  if (link?.released) {
    add({
      key: `released ${name}`, route: name, title: `${name} has released its port`, seconds: link.seconds,
      advice: "Reopen it when the other program has finished.",
    });
  } else if (link?.reason) {
    add({
      key: `link ${name}`, route: name, isBad: true, title: `${name} waits for its device`, seconds: link.seconds,
      details: [link.reason], advice: nextTry(link.retry),
    });
  }
  if (!link && route.links?.waiting > 0) {
    add({ key: `link ${name}`, route: name, isBad: true, title: `${name}: ${count(route.links.waiting, "link")} can't be opened` });
  }
  if (link?.held) {
    const isXoff = link.held.by === "xoff";
    add({
      key: `held ${name}`, route: name, title: `${name}: flow control holds the output`, seconds: link.held.seconds,
      details: [isXoff ? "The device has sent XOFF." : "The device does not raise CTS."],
      advice: isXoff ? "It goes on when the device sends XON." : "Check the device and its cable, or set another flow= in the endpoint.",
    });
  }
  if (link?.overrun > 0) {
    add({
      key: `overrun ${name}`, route: name, title: `${name}: the port has lost ${count(link.overrun, "byte")} since it was opened`,
      details: ["The buffer of the hardware or the driver was full."],
      advice: "Set flow=rtscts in the endpoint, if the device can do it, or a lower bit rate.",
    });
  }
  if (route.queued > 0) {
    add({
      key: `queue ${name}`, route: name, title: `${name} is full: ${count(route.queued, "client")} in the queue`,
      advice: "Kick a client, or raise clients.max.",
    });
  }
  if (state.hasRecentLoss(name)) {
    add({
      key: `dropped ${name}`, route: name, title: `${name} drops bytes`,
      details: [`${bytes(route.totals.dropped)} since the route began, some of them within the last minute.`],
      advice: "A client reads too slowly, or the device takes nothing: see the clients of the route.",
    });
  }
  if (route.capture?.error) {
    add({
      key: `capture ${name}`, route: name, isBad: true, title: `${name}: the recording has stopped`,
      details: [route.capture.error, route.capture.file ?? ""], advice: "Correct the cause, then reload.",
    });
  } else if (state.hasRecentLoss(recordingOf(name))) {
    add({
      key: `capture-drops ${name}`, route: name, title: `${name}: bytes are missing in the recording`,
      details: [`${bytes(route.capture.dropped)} since the route began, some of them within the last minute.`],
      advice: "The log has the reason. If the disk is too slow for this route, record to another one.",
    });
  }
  for (const listener of route.listeners) ofListener(listener, name, add);
}

const nextTry = (seconds) => (seconds === undefined ? "" : `Next try in ${age(seconds)}.`);

export function prepare() {
  one("problems-all").addEventListener("click", () => {
    isWhole = !isWhole;
    draw(shownRoute);
  });
}

/** Shows them, or those of one route, and returns the number of all. */
export function draw(route) {
  shownRoute = route;
  const all = find(state.status);
  const problems = route === undefined ? all : all.filter((problem) => problem.route === route);
  const title = one("problems-title");
  const nothing = route === undefined ? "Everything works" : "Nothing is wrong here";
  setText(title, problems.length ? count(problems.length, "problem") : nothing);
  title.dataset.mood = problems.length ? "bad" : "good";
  reconcile(one("problems"), problems.slice(0, isWhole ? MANY : FEW), { key: (problem) => problem.key, create, update });
  show(one("problems-all"), problems.length > FEW);
  setText(one("problems-all"), isWhole ? "Show fewer" : `Show ${problems.length > MANY ? MANY : "all"} of ${problems.length}`);
  tell(all);
  return all.length;
}

function create(problem) {
  const link = problem.route ? make("a", { href: `#/routes/${encodeURIComponent(problem.route)}` }) : make("span");
  return make(
    "li", { data: { mood: problem.isBad ? "bad" : "busy" } },
    make("p", { class: "what" }, make("span", { class: "unseen" }, problem.isBad ? "Error: " : "Warning: "), link, make("span", { class: "since" })),
    make("p", { class: "details" }), make("p", { class: "advice" }));
}

function update(element, problem) {
  setText(element.querySelector(".what :nth-child(2)"), problem.title);
  setText(element.querySelector(".since"), problem.seconds === undefined ? "" : `since ${age(problem.seconds)}`);
  setText(element.querySelector(".details"), (problem.details ?? []).join("\n"));
  setText(element.querySelector(".advice"), problem.advice ?? "");
}

/** Announces new and solved problems to users who do not see the page. */
function tell(problems) {
  const now = new Map(problems.map((problem) => [problem.key, problem.title]));
  const added = [...now].filter(([key]) => !known.has(key)).map(([, title]) => title);
  const gone = [...known].filter(([key]) => !now.has(key)).map(([, title]) => title);
  known = now;
  const said = [...short(added, "New problem"), ...short(gone, "Solved")];
  if (said.length) announce(said.join(". "));
}

function short(titles, word) {
  if (titles.length === 0) return [];
  return titles.length > 3 ? [`${word}: ${titles.length}`] : titles.map((title) => `${word}: ${title}`);
}
