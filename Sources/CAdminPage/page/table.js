// A table of many rows: sorted by a click on a header, in pages, and only cells whose text has changed are touched.

import { make, reconcile, setText, show } from "/page/dom.js";
import { count } from "/page/format.js";

export class Table {
  #element;
  #body = make("tbody");
  #columns;
  #key;
  #size;
  #pager;
  #what;
  #sort;
  #rows = [];
  #page = 0;

  /**
   * A column has `title` and `text(row)`; `value(row)` sorts (without it the text does, `null` is not sorted);
   * `paint(cell, row)` writes another content than the text, whenever the text has changed; `kind` is a class;
   * `isHeader` marks the cell that names the row. `key(row)` tells rows apart.
   */
  constructor(element, columns, { key, what = "row", size = 100, pager, sort = 0, isDescending = false }) {
    this.#element = element;
    this.#columns = columns;
    this.#key = key;
    this.#what = what;
    this.#size = size;
    this.#pager = pager;
    this.#sort = { index: sort, isDescending };
    element.append(make("thead", {}, make("tr", {}, ...columns.map((column, index) => this.#header(column, index)))));
    element.append(this.#body);
    this.#markSort();
  }

  update(rows) {
    this.#rows = rows;
    this.#draw();
  }

  /** For other rows than before, such as after a search. */
  goToStart() {
    this.#page = 0;
  }

  #header(column, index) {
    const cell = make("th", { scope: "col", class: column.kind });
    if (column.value === null) cell.append(make("span", { class: column.isUnseen ? "unseen" : undefined }, column.title));
    else cell.append(make("button", { type: "button", onclick: () => this.#sortBy(index) }, column.title));
    return cell;
  }

  #sortBy(index) {
    const isSame = index === this.#sort.index;
    // Of figures, the large ones are looked for.
    const first = this.#columns[index].kind?.includes("number") ?? false;
    this.#sort = { index, isDescending: isSame ? !this.#sort.isDescending : first };
    this.#page = 0;
    this.#markSort();
    this.#draw();
  }

  #markSort() {
    this.#element.querySelectorAll("thead th").forEach((cell, index) => {
      if (index !== this.#sort.index) cell.removeAttribute("aria-sort");
      else cell.setAttribute("aria-sort", this.#sort.isDescending ? "descending" : "ascending");
    });
  }

  #draw() {
    const { index, isDescending } = this.#sort;
    const column = this.#columns[index];
    const value = column.value ?? column.text;
    const direction = isDescending ? -1 : 1;
    const sorted = this.#rows.map((row) => [value(row), row]).sort(([a], [b]) => direction * compare(a, b));
    const last = Math.max(0, Math.ceil(sorted.length / this.#size) - 1);
    this.#page = Math.min(this.#page, last);
    const start = this.#page * this.#size;
    const shown = sorted.slice(start, start + this.#size).map(([, row]) => row);
    reconcile(this.#body, shown, {
      key: this.#key, create: () => this.#newRow(), update: (element, row) => this.#updateRow(element, row),
    });
    this.#drawPager(start, shown.length, sorted.length, last);
  }

  #newRow() {
    return make("tr", {}, ...this.#columns.map((column) =>
      column.isHeader ? make("th", { scope: "row", class: column.kind }) : make("td", { class: column.kind })));
  }

  #updateRow(element, row) {
    this.#columns.forEach((column, index) => {
      const cell = element.children[index];
      const text = String(column.text(row));
      if (cell.written === text) return;
      cell.written = text;
      if (column.paint) column.paint(cell, row);
      else setText(cell, text);
    });
  }

  #drawPager(start, shown, all, last) {
    if (!this.#pager) return;
    show(this.#pager, last > 0);
    if (!this.#pager.firstChild) {
      const turn = (pages) => () => {
        this.#page += pages;
        this.#draw();
        this.#element.scrollIntoView({ block: "nearest" });
      };
      this.#pager.append(
        make("button", { type: "button", onclick: turn(-1) }, "Previous"), make("span", { role: "status" }),
        make("button", { type: "button", onclick: turn(1) }, "Next"));
    }
    const [previous, where, next] = this.#pager.children;
    previous.disabled = this.#page === 0;
    next.disabled = this.#page === last;
    setText(where, `${start + 1} to ${start + shown} of ${count(all, this.#what)}`);
  }
}

const collator = new Intl.Collator("en", { numeric: true });

function compare(a, b) {
  return typeof a === "number" && typeof b === "number" ? a - b : collator.compare(String(a), String(b));
}
