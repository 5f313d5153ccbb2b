// Elements from data. Text of devices, clients and files only ever becomes text: nothing here or elsewhere in the page
// makes markup of it.

export const one = (id) => document.getElementById(id);

/** An element. A property whose name begins with "on" is a listener, `data` has data attributes; strings become text. */
export function make(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "data") Object.assign(element.dataset, value);
    else element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== undefined && child !== null));
  return element;
}

/** Touches the element only if the text is another one. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function show(element, isShown) {
  if (element.hidden === isShown) element.hidden = !isShown;
}

/** Keeps the elements of a list that stay, by key, so that focus and selection stay too. */
export function reconcile(parent, items, { key, create, update }) {
  const known = new Map(Array.from(parent.children, (child) => [child.dataset.key, child]));
  const focused = document.activeElement;
  let next = parent.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    let child = known.get(name);
    known.delete(name);
    if (!child) {
      child = create(item);
      child.dataset.key = name;
    }
    update?.(child, item);
    if (child === next) next = next.nextElementSibling;
    else parent.insertBefore(child, next);
  }
  for (const child of known.values()) child.remove();
  if (focused === document.activeElement) return;
  // An element that is moved loses the focus; one that is removed leaves it to the heading of its section.
  const heir = focused?.isConnected ? focused : parent.closest("section").querySelector("h2");
  heir.focus({ preventScroll: true });
}

/** For screen readers; said once, when they are done with what they say. */
export function announce(text) {
  one("announcement").textContent = text;
}

let toastEnd;

/** Shows the result of what the user did. */
export function toast(text) {
  one("toast").textContent = text;
  clearTimeout(toastEnd);
  toastEnd = setTimeout(() => { one("toast").textContent = ""; }, 8000);
}
