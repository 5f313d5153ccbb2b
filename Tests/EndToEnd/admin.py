"""Clients of the admin listener: curl, and bytes as a test writes them."""
import json
import re
import subprocess
from typing import NamedTuple

from kit import Gateway, connect, receive_all


class Answer(NamedTuple):
    status: int
    fields: dict
    content: bytes

    @property
    def text(self) -> str:
        return self.content.decode()

    @property
    def json(self):
        return json.loads(self.content)


def place(gateway: Gateway, scheme: str = "http", index: int = 0) -> tuple[str, int]:
    """Where the admin listener really listens."""
    found = [e["listen"] for e in gateway.events("listening") if e["listen"].startswith(f"{scheme}://")]
    host, port = re.fullmatch(r"https?://(.*):(\d+)(?:\?.*)?", found[index]).groups()
    return host.strip("[]"), int(port)


def url(gateway: Gateway, path: str, scheme: str = "http") -> str:
    host, port = place(gateway, scheme)
    return f"{scheme}://{host}:{port}{path}"


def parse(raw: bytes) -> Answer:
    """One response, to the end of the connection."""
    while raw.startswith(b"HTTP/1.1 100 "):
        raw = raw.partition(b"\r\n\r\n")[2]
    head, mark, content = raw.partition(b"\r\n\r\n")
    assert mark, raw
    first, *lines = head.decode().split("\r\n")
    fields = {}
    for line in lines:
        name, _, value = line.partition(": ")
        fields[name.lower()] = f"{fields[name.lower()]}, {value}" if name.lower() in fields else value
    assert "close" in fields["connection"].split(", ")
    return Answer(int(first.split()[1]), fields, content)


def ask(gateway: Gateway, request: str | bytes, *fields: str, content: bytes = b"", host: str = "localhost") -> Answer:
    """Sends a request such as "GET /healthz" as bytes."""
    if isinstance(request, str):
        lines = [f"{request} HTTP/1.1", f"Host: {host}", *fields]
        if content:
            lines.append(f"Content-Length: {len(content)}")
        request = "\r\n".join([*lines, "", ""]).encode() + content
    with connect(place(gateway)) as client:
        client.sendall(request)
        return parse(receive_all(client))


def curl(gateway: Gateway, path: str, *words: str, scheme: str = "http") -> Answer:
    """curl decodes chunks, and fails if a response is cut short."""
    done = subprocess.run(
        ["curl", "--silent", "--show-error", "--include", "--max-time", "60", *words, url(gateway, path, scheme)],
        capture_output=True, timeout=90)
    assert done.returncode == 0, done.stderr
    return parse(done.stdout)
