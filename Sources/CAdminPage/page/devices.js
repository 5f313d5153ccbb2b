// Serial ports and Bluetooth adapters of the gateway's machine, with the programs that hold them.

import { get, SessionEnd } from "/page/api.js";
import { make, one, setText, show } from "/page/dom.js";
import { Table } from "/page/table.js";

const usb = ({ usb: facts }) => (facts ? [facts.manufacturer, facts.name, facts.serial].filter(Boolean).join(", ") : "");
const holders = (port) => (port["held-by"] ?? []).map((one) => `${one.program ?? "a program"} (${one.pid})`).join(", ");

const PORTS = [
  {
    title: "URL", kind: "code", isHeader: true, text: (port) => [port.url, ...port.links].join("\n"),
    paint: (cell, port) => cell.replaceChildren(port.url),
  },
  { title: "Node", kind: "code", text: (port) => port.node },
  { title: "What it is", text: (port) => usb(port) || port.driver || "" },
  { title: "Held by", text: (port) => holders(port) || "–" },
  { title: "Remark", kind: "minor", text: (port) => port.error ?? "" },
];

const ADAPTERS = [
  { title: "Adapter", isHeader: true, text: (adapter) => adapter.adapter },
  { title: "Address", kind: "code", text: (adapter) => adapter.address },
  {
    title: "State", text: (adapter) => (adapter.on ? "on" : "off"),
    paint: (cell, { on }) => cell.replaceChildren(make("span", { class: "badge", data: { mood: on ? "good" : "busy" } }, on ? "on" : "off")),
  },
];

let ports;
let adapters;

export function prepare() {
  ports = new Table(one("ports"), PORTS, { key: (port) => port.node, what: "port" });
  adapters = new Table(one("adapters"), ADAPTERS, { key: (adapter) => adapter.adapter, what: "adapter" });
  one("devices-again").addEventListener("click", look);
}

/** Forgets them, for another user. */
export function clear() {
  ports.update([]);
  adapters.update([]);
  for (const id of ["devices-fault", "adapters-fault"]) show(one(id), false);
}

export async function look() {
  try {
    const answer = await get("/api/v1/devices");
    ports.update(answer.serial);
    adapters.update(answer.bluetooth);
    const nothing = answer.bluetooth.length ? "" : "There are no Bluetooth adapters.";
    const fault = answer["bluetooth-error"] ?? nothing;
    show(one("adapters-fault"), fault !== "");
    setText(one("adapters-fault"), fault);
    show(one("devices-fault"), answer.serial.length === 0);
    setText(one("devices-fault"), "There are no serial ports.");
  } catch (error) {
    if (error instanceof SessionEnd) return;
    show(one("devices-fault"), true);
    setText(one("devices-fault"), error.message);
  }
}
