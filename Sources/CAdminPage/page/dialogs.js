// Questions before a change, and failures after it. A dialog takes the focus, Escape closes it, and the focus goes back
// to where it was.

import { make, one, show, toast } from "/page/dom.js";
import { Refusal, SessionEnd } from "/page/api.js";

let previous = Promise.resolve();

/** Asks before something is done. With `label` it also asks for a text. Returns false, or true or the text. */
export async function confirm(question) {
  // A dialog tells that it was closed a moment later: that must not answer the next question.
  await previous;
  previous = ask(question);
  return previous;
}

function ask({ title, text, action, label }) {
  const dialog = one("confirmation");
  one("confirmation-title").textContent = title;
  one("confirmation-text").textContent = text;
  one("confirmation-yes").textContent = action;
  show(one("confirmation-input"), label !== undefined);
  one("confirmation-label").textContent = label ?? "";
  const input = one("confirmation-value");
  input.value = "";
  dialog.returnValue = "";
  dialog.showModal();
  if (label === undefined) one("confirmation-yes").focus();
  else input.focus();
  return new Promise((resolve) => {
    const end = () => resolve(dialog.returnValue === "yes" && (label === undefined || input.value.trim()));
    dialog.addEventListener("close", end, { once: true });
  });
}

/** Enter in the text field means the action, not the first button. */
export function prepare() {
  one("confirmation-value").addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    one("confirmation").close("yes");
  });
}

/** Does something after the user has agreed, and shows its result or why it failed. */
export async function carryOut(question, action) {
  const answer = await confirm(question);
  if (answer === false) return;
  try {
    toast(await action(answer));
  } catch (error) {
    if (!(error instanceof SessionEnd)) fail(question.failure, error);
  }
}

function fail(title, error) {
  const problems = error instanceof Refusal ? error.problems : [];
  one("failure-title").textContent = title;
  one("failure-text").textContent = error instanceof Refusal ? error.message : "The gateway does not answer.";
  show(one("failure-problems"), problems.length > 0);
  one("failure-rows").replaceChildren(...problems.map(row));
  one("failure").showModal();
}

/** "FILE:LINE:COLUMN: what is wrong". A problem of the file as a whole has no line. */
export function place(problem) {
  const [, file = "", line = "", column = "", text = problem] = problem.match(/^(.*?):(\d+):(\d+): (.*)$/s) ?? [];
  return { file, line, column, text };
}

function row(problem) {
  const { file, line, column, text } = place(problem);
  return make(
    "tr", {}, make("td", {}, file.split("/").pop()), make("td", { class: "number" }, line),
    make("td", { class: "number" }, column), make("td", {}, text));
}
