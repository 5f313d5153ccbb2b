// The status page: log-in, views by the address after "#", and what belongs to the gateway as a whole.

import * as api from "/page/api.js";
import * as devices from "/page/devices.js";
import * as dialogs from "/page/dialogs.js";
import { one, setText, show } from "/page/dom.js";
import { age, count } from "/page/format.js";
import * as live from "/page/live.js";
import * as log from "/page/log.js";
import * as problems from "/page/problems.js";
import * as route from "/page/route.js";
import * as routes from "/page/routes.js";
import { state } from "/page/state.js";
import * as terminal from "/page/terminal.js";

const VIEWS = ["routes", "route", "terminal", "devices", "log"];
let view = "routes";

// Log-in

let retry;

async function logIn() {
  clearTimeout(retry);
  try {
    state.setUser(await api.get("/api/v1/user"));
  } catch (error) {
    if (error instanceof api.SessionEnd) return;
    if (!(error instanceof api.Refusal)) {
      state.setConnection("lost", "The gateway does not answer.");
      retry = setTimeout(logIn, 2000);
      return;
    }
    const words = { 401: "The gateway does not know these credentials." };
    askForCredentials(api.isLoggedIn() ? words[error.status] ?? error.message : "");
    return;
  }
  api.keepCredentials();
  show(one("log-in"), false);
  show(one("views"), true);
  one("log-in-form").reset();
  live.start(() => askForCredentials("Log in again."));
  navigate();
}

function askForCredentials(fault) {
  live.stop();
  terminal.close();
  api.forgetCredentials();
  state.clear();
  log.clear();
  devices.clear();
  for (const id of ["gateway", "views", "user"]) show(one(id), false);
  one("connection").dataset.state = "connecting";
  setText(one("connection"), "");
  show(one("log-in"), true);
  setText(one("log-in-fault"), fault);
  const isToken = one("log-in-token").value !== "";
  one(isToken ? "log-in-token" : "log-in-user").focus();
}

function submit(event) {
  event.preventDefault();
  const token = one("log-in-token").value.trim();
  if (token) api.useToken(token);
  else api.usePassword(one("log-in-user").value, one("log-in-password").value);
  setText(one("log-in-fault"), "");
  logIn();
}

// Views

/** "#/", "#/routes/NAME", "#/routes/NAME/terminal", "#/devices", "#/log". Any other is none of ours. */
function navigate() {
  const words = location.hash.split("/").slice(1).map(decode);
  const ofRoute = words[2] === "terminal" ? "terminal" : "route";
  view = words[0] === "routes" && words[1] ? ofRoute : VIEWS.includes(words[0]) ? words[0] : "routes";
  for (const each of VIEWS) show(one(`${each}-view`), each === view);
  for (const link of one("views").children) {
    const isHere = link.hash === (view === "route" || view === "terminal" ? "#/" : location.hash || "#/");
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (view === "route") route.open(words[1]);
  if (view === "terminal") {
    route.choose(words[1]);
    terminal.open(words[1]);
  } else {
    terminal.close();
  }
  if (view === "devices") devices.look();
  if (view === "log") log.open();
  draw();
}

function decode(word) {
  try {
    return decodeURIComponent(word);
  } catch {
    return word;
  }
}

function draw() {
  const { status } = state;
  show(one("gateway"), Boolean(status));
  if (!status) return;
  const clients = status.routes.reduce((sum, each) => sum + each.clients.length, 0);
  setText(
    one("summary"), `${count(status.routes.length, "route")}, ${count(clients, "client")}, up ${age(status.seconds)}, Baudway ${status.version}`);
  const number = problems.draw(view === "route" ? route.shown() : undefined);
  show(one("problems-view"), view === "routes" || view === "route");
  document.title = `${number ? `(${number}) ` : ""}Baudway ${location.host}`;
  if (view === "routes") routes.draw();
  if (view === "route") route.draw();
}

function drawUser() {
  show(one("reload"), state.mayReload);
  show(one("user"), api.isLoggedIn());
  setText(one("user-name"), state.user.user ?? "");
  draw();
}

function drawConnection() {
  const { word, since, reason } = state.connection;
  const isLost = word === "lost";
  one("connection").dataset.state = word;
  document.body.classList.toggle("stale", isLost);
  // Without the time since then, which would be read aloud again and again.
  setText(one("connection"), isLost ? `disconnected: ${reason} Connecting again.` : word);
  one("connection").title = isLost ? `since ${age((performance.now() - since) / 1000)}` : "";
}

function reload() {
  dialogs.carryOut({
    title: "Reload the configuration?", action: "Reload", failure: "Nothing has changed",
    text: "The gateway reads its file again. Routes that are changed or removed end their sessions or links; others go on.",
  }, async () => {
    const done = await api.post("/api/v1/reload");
    live.refresh();
    const changes = [
      [done.added, "added"], [done.removed, "removed"], [done.changed.map((each) => each.route), "changed"], [done.settings, "set"],
    ].filter(([names]) => names.length).map(([names, word]) => `${word} ${names.slice(0, 5).join(", ")}${names.length > 5 ? " and others" : ""}`);
    return changes.length ? `Reloaded: ${changes.join("; ")}.` : "Reloaded: nothing has changed in the file.";
  });
}

for (const part of [dialogs, problems, routes, route, terminal, devices, log]) part.prepare();
one("log-in-form").addEventListener("submit", submit);
one("log-out").addEventListener("click", () => askForCredentials(""));
one("reload").addEventListener("click", reload);
one("skip").addEventListener("click", (event) => {
  event.preventDefault();
  one("main").focus();
});
addEventListener("hashchange", () => {
  if (!one("log-in").hidden) return;
  navigate();
  one(`${view}-title`).focus();
});
state.addEventListener("status", draw);
state.addEventListener("user", drawUser);
state.addEventListener("connection", drawConnection);
logIn();
