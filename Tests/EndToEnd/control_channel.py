"""A client of the sub-protocol `baudway.v1`."""
import json
import socket

import jsonschema
from kit import ROOT
from listener_clients import WebSocket

SCHEMA = json.loads((ROOT / "Deploy/baudway.v1.schema.json").read_text())


class ControlChannel(WebSocket):
    """A client that keeps bytes and texts apart. Every text is validated against the published schema."""

    def __init__(self, client: socket.socket, path: str = "/lab", **fields):
        super().__init__(client, path, {"Sec-WebSocket-Protocol": "baudway.v1", **fields})
        assert self.head["sec-websocket-protocol"] == "baudway.v1"
        self.bytes, self.texts, self.asked = b"", [], 1000

    def ask(self, request: dict):
        jsonschema.validate(request, SCHEMA)
        self.send(json.dumps(request).encode(), 1)

    def answer(self, request: str, **keys) -> dict:
        """Sends a request and returns the reply."""
        self.asked += 1
        self.ask({"request": request, "id": self.asked, **keys})
        return self.reply(self.asked)

    def _next(self):
        opcode, payload = self.frame()
        if opcode == 1:
            text = json.loads(payload)
            jsonschema.validate(text, SCHEMA)
            self.texts.append(text)
        elif opcode in (0, 2):
            self.bytes += payload
        elif opcode == 9:
            self.send(payload, 10)
        else:
            raise AssertionError((opcode, payload))

    def _text(self, fits) -> dict:
        while not (found := [text for text in self.texts if fits(text)]):
            self._next()
        self.texts.remove(found[0])
        return found[0]

    def event(self, name: str, **fields) -> dict:
        return self._text(lambda t: t.get("event") == name and all(t.get(k) == v for k, v in fields.items()))

    def reply(self, id) -> dict:
        return self._text(lambda t: "reply" in t and t["reply"] == id)

    def read(self, count: int) -> bytes:
        while len(self.bytes) < count:
            self._next()
        taken, self.bytes = self.bytes[:count], self.bytes[count:]
        return taken
