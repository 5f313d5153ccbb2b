// What a device sends, on the screen of xterm.js, which draws it on a canvas: no text of a device becomes markup, and the
// page's policy needs no exception. What the device asks the terminal (its kind, the cursor's place) is not answered:
// bytes of a device never cause bytes to it by themselves.

/** Of the session, for saving it; the oldest are dropped. */
const MOST_KEPT = 8 << 20;
/** Bytes that wait to be drawn; a browser that is slower loses the oldest, which are counted. */
const MOST_WAITING = 1 << 20;
/** The largest number in a sequence of a device, and the longest text in one. xterm.js limits neither: it would insert 10^20 lines. */
const MOST_IN_SEQUENCE = 9999;
const LONGEST_IN_SEQUENCE = 64 << 10;
/** Bytes that are drawn at a time. */
const STEP = 16 << 10;
const ROW = 16;

export class Screen {
  #terminal;
  #core;
  #parent;
  #onInput;
  #isParsing = false;
  #waiting = [];
  #waitingCount = 0;
  #timer;
  #decoder = new TextDecoder();
  #atLineStart = true;
  #row = [];
  #rowTime;
  #offset = 0;
  #kept = [];
  #keptCount = 0;
  #found;
  isHex = false;
  hasTimes = false;
  /** Bytes that the browser was too slow to draw. */
  skipped = 0;

  /**
   * `Terminal`: the class of xterm.js. `onInput` gets the text that the user types; `onLeave` is called for Ctrl ], because
   * Tab is for the device.
   */
  constructor(Terminal, parent, onInput, onLeave) {
    const font = getComputedStyle(document.documentElement).getPropertyValue("--code");
    this.#terminal = new Terminal({ scrollback: 10000, fontFamily: font, fontSize: 14, bellStyle: "none", cursorBlink: false });
    this.#core = this.#terminal._core;
    this.#parent = parent;
    this.#onInput = onInput;
    this.#terminal.open(parent);
    const handler = this.#core._inputHandler;
    const parser = handler._parser;
    const sequences = parser._csiHandlers;
    for (const [code, handle] of Object.entries(sequences)) {
      sequences[code] = (numbers, collected) => handle(numbers.map((number) => Math.min(number, MOST_IN_SEQUENCE)), collected);
    }
    const parse = handler.parse.bind(handler);
    handler.parse = (text) => {
      this.#isParsing = true;
      try {
        parse(text);
        if (parser._osc.length > LONGEST_IN_SEQUENCE) parser.reset();
      } finally {
        this.#isParsing = false;
      }
    };
    this.#terminal.on("data", (text) => { if (!this.#isParsing) this.#onInput(text); });
    this.#terminal.attachCustomKeyEventHandler((event) => {
      if (event.type !== "keydown" || !event.ctrlKey || event.key !== "]") return true;
      event.preventDefault();
      onLeave();
      return false;
    });
    this.#terminal.textarea.setAttribute("aria-describedby", "terminal-hint");
    this.#core.charMeasure.on("charsizechanged", () => this.fit());
    this.fit();
  }

  focus() {
    this.#terminal.focus();
  }

  fit() {
    const { actualCellWidth: width, actualCellHeight: height } = this.#core.renderer.dimensions;
    // The letters are not measured yet.
    if (!(width > 0 && height > 0)) return;
    const style = getComputedStyle(this.#terminal.element);
    const room = {
      x: this.#parent.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight) - this.#core.viewport.scrollBarWidth,
      y: this.#parent.clientHeight - parseFloat(style.paddingTop) - parseFloat(style.paddingBottom),
    };
    const [columns, rows] = [Math.floor(room.x / width), Math.floor(room.y / height)];
    if (!(columns >= 2 && rows >= 1) || (columns === this.#terminal.cols && rows === this.#terminal.rows)) return;
    this.#terminal.resize(columns, rows);
  }

  newLineAtLF(isOn) {
    this.#terminal.setOption("convertEol", isOn);
  }

  /** Bytes of the device, at any speed. Returns how many were skipped for them. */
  write(bytes) {
    this.#keep(bytes);
    this.#waiting.push(bytes);
    this.#waitingCount += bytes.length;
    let dropped = 0;
    while (this.#waitingCount > MOST_WAITING && this.#waiting.length > 1) {
      const { length } = this.#waiting.shift();
      this.#waitingCount -= length;
      dropped += length;
    }
    this.skipped += dropped;
    if (dropped) this.#offset += dropped;
    this.#plan();
    return dropped;
  }

  #plan() {
    this.#timer ??= setTimeout(() => this.#draw(), 0);
  }

  #draw() {
    this.#timer = undefined;
    // The terminal still works on what it has got.
    if (this.#core.writeBuffer.length === 0) {
      let room = STEP;
      while (room > 0 && this.#waiting.length) {
        let bytes = this.#waiting[0];
        if (bytes.length > room) {
          this.#waiting[0] = bytes.subarray(room);
          bytes = bytes.subarray(0, room);
        } else {
          this.#waiting.shift();
        }
        this.#waitingCount -= bytes.length;
        room -= bytes.length;
        this.#terminal.write(this.isHex ? this.#hex(bytes) : this.#text(bytes));
      }
    }
    if (this.#waiting.length) this.#timer = setTimeout(() => this.#draw(), 8);
  }

  #text(bytes) {
    this.#offset += bytes.length;
    const text = this.#decoder.decode(bytes, { stream: true });
    if (!this.hasTimes) {
      if (text) this.#atLineStart = text.endsWith("\n");
      return text;
    }
    const time = now();
    let marked = "";
    for (const part of text.split(/(?<=\n)/)) {
      if (part === "") continue;
      if (this.#atLineStart) marked += `[${time}] `;
      marked += part;
      this.#atLineStart = part.endsWith("\n");
    }
    return marked;
  }

  /** The row that is not full is written anew with each byte. */
  #hex(bytes) {
    let text = "";
    for (const byte of bytes) {
      if (this.#row.length === 0) this.#rowTime = now();
      this.#row.push(byte);
      this.#offset += 1;
      if (this.#row.length < ROW) continue;
      text += `\r${this.#line()}\r\n`;
      this.#row = [];
    }
    return this.#row.length ? `${text}\r${this.#line()}` : text;
  }

  #line() {
    const offset = (this.#offset - this.#row.length).toString(16).padStart(8, "0");
    const digits = this.#row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(3 * ROW - 1);
    const letters = this.#row.map((byte) => (byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : ".")).join("");
    return `${this.hasTimes ? `[${this.#rowTime}] ` : ""}${offset}  ${digits}  |${letters}|`;
  }

  /** Another form of what comes from now on. */
  setHex(isHex) {
    if (isHex === this.isHex) return;
    this.isHex = isHex;
    this.#row = [];
    this.#decoder = new TextDecoder();
    this.notice("");
  }

  /** A line of ours, between those of the device. */
  notice(text) {
    this.#terminal.write(`\r\n${text ? `\x1b[7m ${text.replace(/[^\x20-\x7e]/g, "?")} \x1b[0m\r\n` : ""}`);
    this.#atLineStart = true;
    this.#row = [];
  }

  #keep(bytes) {
    this.#kept.push(bytes);
    this.#keptCount += bytes.length;
    while (this.#keptCount > MOST_KEPT && this.#kept.length > 1) this.#keptCount -= this.#kept.shift().length;
  }

  /** The bytes of the session, as they came. */
  get session() {
    return new Blob(this.#kept, { type: "application/octet-stream" });
  }

  clear() {
    this.#terminal.clear();
    this.#kept = [];
    this.#keptCount = 0;
  }

  /** The lines of the screen and of those above it. */
  get lines() {
    const { buffer } = this.#core;
    return Array.from({ length: buffer.lines.length }, (_, index) => buffer.translateBufferLineToString(index, true));
  }

  /** Selects the next line with the words, or the one before, and shows it. */
  find(words, isBackward) {
    const { lines } = this;
    const wanted = words.toLowerCase();
    if (!wanted) return false;
    const step = isBackward ? -1 : 1;
    const start = this.#found ?? (isBackward ? 0 : -1);
    for (let count = 1; count <= lines.length; count += 1) {
      const index = (start + step * count + lines.length * 2) % lines.length;
      const column = lines[index].toLowerCase().indexOf(wanted);
      if (column < 0) continue;
      this.#found = index;
      this.#core.selectionManager.setSelection(column, index, wanted.length);
      this.#terminal.scrollToLine(Math.max(0, index - Math.floor(this.#terminal.rows / 2)));
      return true;
    }
    return false;
  }

  get selection() {
    return this.#terminal.getSelection();
  }

  dispose() {
    clearTimeout(this.#timer);
    this.#terminal.dispose();
    this.#parent.replaceChildren();
  }
}

function now() {
  const date = new Date();
  const digits = (number, count) => String(number).padStart(count, "0");
  return `${digits(date.getHours(), 2)}:${digits(date.getMinutes(), 2)}:${digits(date.getSeconds(), 2)}.${digits(date.getMilliseconds(), 3)}`;
}
