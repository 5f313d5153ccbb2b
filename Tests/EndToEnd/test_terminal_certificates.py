"""Terminals at an `https` admin listener whose clients log in by certificate: a revoked certificate opens none, and the
terminals that it has opened end."""
import os
import ssl
import time

import pytest
from admin import parse, place
from certificates import Authority, Pair
from control_channel import ControlChannel
from kit import Gateway, connect, receive_all
from listener_clients import Status, connect_tls, finish, trusting

NAMES = ("ada", "bob", "cyd")
PATH = "/api/v1/routes/a/terminal"


class Place:
    """An authority, a certificate for each user, and the revocation list that the gateway reads."""

    def __init__(self, folder):
        self.authority = Authority(folder)
        self.server = self.authority.issue("gw.test", "gw.test")
        self.pairs = {name: self.authority.issue(name) for name in NAMES}
        self.list = folder / "revoked.pem"
        self.revoke()

    def revoke(self, *names: str):
        """Replaces the list as a whole, as tools do."""
        for name in names:
            self.authority.revoke(self.pairs[name])
        new = self.list.with_suffix(".new")
        new.write_bytes(self.authority.revocations().read_bytes())
        os.replace(new, self.list)

    def serving(self, **more) -> Gateway:
        """`more` goes into `tls`."""
        gateway = Gateway({
            "admin": {"listen": "https://127.0.0.1:0"},
            "tls": {
                "certificate": str(self.server.certificate), "key": str(self.server.key),
                "client-ca": str(self.authority.certificate), "crl": str(self.list), **more},
            "users": {name: {"certificate": name, "roles": {"*": "admin"}} for name in NAMES},
            "routes": {"a": {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo"}}})
        gateway.expected += 1
        return gateway

    def dial(self, gateway: Gateway, name: str | None) -> ssl.SSLSocket:
        """A connection by TLS that shows the certificate of `name`."""
        return connect_tls(place(gateway, "https"), trusting(self.authority, self.pairs[name] if name else None))

    def ticket(self, gateway: Gateway, name: str) -> str:
        with self.dial(gateway, name) as client:
            client.sendall(f"POST {PATH} HTTP/1.1\r\nHost: gw.test\r\n\r\n".encode())
            answer = parse(receive_all(client))
        assert answer.status == 200, answer
        return answer.json["ticket"]


@pytest.fixture
def lab(tmp_path) -> Place:
    return Place(tmp_path)


def request(gateway: Gateway, ticket: str | None = None) -> dict:
    """The fields of a page's request, or of a program's."""
    offered = "baudway.v1" + (f", ticket.{ticket}" if ticket else "")
    return {"Host": "gw.test", "Sec-WebSocket-Protocol": offered, **({"Origin": "https://gw.test"} if ticket else {})}


def open_by(lab: Place, gateway: Gateway, name: str | None, ticket: str | None = None) -> ControlChannel:
    return ControlChannel(lab.dial(gateway, name), PATH, **request(gateway, ticket))


def works(terminal: ControlChannel):
    terminal.send(b"there?")
    assert terminal.read(6) == b"there?"


def is_refused(lab: Place, gateway: Gateway, name: str):
    """By TLS, before any request: to open a terminal, to get a ticket, with a ticket of somebody else."""
    before = len(gateway.events("session ended", reason="login-failed"))
    for attempt in (
        lambda: open_by(lab, gateway, name), lambda: lab.ticket(gateway, name),
        lambda: open_by(lab, gateway, name, lab.ticket(gateway, "cyd")),
    ):
        # The alert comes after the client's own part of the handshake, so its request may be on its way.
        with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)) as caught:
            attempt()
        assert not isinstance(caught.value, AssertionError) or "ended after" in str(caught.value), caught.value
    for count in (1, 2, 3):
        ended = gateway.event("session ended", reason="login-failed", count=before + count)
        assert "is revoked" in ended["error"], ended
    assert not [e for e in gateway.events("session opened") if e.get("user") == name]


@pytest.mark.parametrize("auth", ["required", "optional"])
def test_a_revoked_certificate_opens_no_terminal_before_and_after_a_new_list(lab, auth):
    lab.revoke("ada")
    with lab.serving(**{"client-auth": auth}) as gateway:
        is_refused(lab, gateway, "ada")
        with lab.dial(gateway, "bob") as client:
            client.sendall(f"POST {PATH} HTTP/1.1\r\nHost: gw.test\r\n\r\n".encode())
            assert parse(receive_all(client)).status == 200
        lab.revoke("bob")
        gateway.event("certificates renewed")
        is_refused(lab, gateway, "bob")
        is_refused(lab, gateway, "ada")
        # The same when an operator reloads the configuration.
        done = gateway.command("reload", str(gateway.path))
        assert done.returncode == 0, done.stderr
        for name in ("ada", "bob"):
            is_refused(lab, gateway, name)
        terminal = open_by(lab, gateway, "cyd")
        assert terminal.event("hello")["user"] == "cyd"
        works(terminal)
        finish(terminal.client)


@pytest.mark.parametrize("by_ticket", [False, True], ids=["program", "page"])
def test_an_open_terminal_ends_when_its_certificate_is_revoked_and_others_stay(lab, by_ticket, quick):
    with lab.serving() as gateway:
        ada, bob = (
            open_by(lab, gateway, name, lab.ticket(gateway, name) if by_ticket else None) for name in ("ada", "bob"))
        for terminal in (ada, bob):
            works(terminal)
        lab.revoke("ada")
        start = time.monotonic()
        assert ada.event("end")["word"] == "denied"
        quick(time.monotonic() - start, 5, "from the new list of revocations")
        assert ada.close_code() == (1008, "denied")
        ended = gateway.event("session ended", user="ada")
        assert ended["reason"] == "denied" and "is revoked" in ended["error"]
        works(bob)
        for terminal in (ada, bob):
            finish(terminal.client)


def test_a_handshake_that_ended_before_the_revocation_opens_no_lasting_terminal(lab):
    """TLS accepted the certificate, and the request comes after the new list: the session ends at once."""
    with lab.serving() as gateway:
        early, bob = lab.dial(gateway, "ada"), open_by(lab, gateway, "bob")
        works(bob)
        lab.revoke("ada")
        gateway.event("certificates renewed")
        terminal = ControlChannel(early, PATH, **request(gateway))
        assert terminal.event("end")["word"] == "denied"
        works(bob)
        for one in (terminal, bob):
            finish(one.client)


def test_a_ticket_of_a_certificate_is_for_a_connection_that_shows_it(lab):
    """Otherwise a terminal would stay when the certificate with which its ticket was got is revoked or expires."""
    with lab.serving(**{"client-auth": "optional"}) as gateway:
        ticket, late = lab.ticket(gateway, "ada"), lab.ticket(gateway, "ada")
        for name in (None, "bob"):
            with pytest.raises(Status) as caught:
                open_by(lab, gateway, name, ticket)
            assert caught.value.status == 401
            ticket = lab.ticket(gateway, "ada")
        terminal = open_by(lab, gateway, "ada", ticket)
        works(terminal)
        lab.revoke("ada")
        assert terminal.event("end")["word"] == "denied"
        with pytest.raises(Status) as caught:
            open_by(lab, gateway, None, late)
        assert caught.value.status == 401
        finish(terminal.client)
