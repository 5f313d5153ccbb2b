"""Runs Autobahn's cases, converted for Python 3, against a peer and judges the results.

drive.py client URL FOLDER [PATTERN...]: the fuzzing client of an echo server
drive.py server PORT[,CERTIFICATE,KEY] FOLDER [PATTERN...]: the fuzzing server, with files over TLS; ends when a client
asks for the report

Patterns are Autobahn's: 1.*, 9.1.3. Exit code 1 if a case failed, or if more than three cases (the informational ones)
are not plainly OK.
"""

import codecs
import json
import pathlib
import sys
import time
import warnings

warnings.filterwarnings("ignore")

import autobahn.websocket.protocol as protocol  # noqa: E402
from autobahn.twisted.websocket import (  # noqa: E402
    WebSocketClientFactory,
    WebSocketClientProtocol,
    WebSocketServerFactory,
    WebSocketServerProtocol,
)
from twisted.internet import reactor  # noqa: E402
from twisted.internet.ssl import CertificateOptions, PrivateCertificate  # noqa: E402


class Masker:
    """XOR of long payloads as integers: a hundred times as fast as byte by byte."""

    def __init__(self, mask, length=None):
        self.mask, self.place = mask, 0

    def pointer(self):
        return self.place

    def reset(self):
        self.place = 0

    def process(self, data):
        turn = self.place % 4
        key = (self.mask[turn:] + self.mask[:turn]) * (len(data) // 4 + 1)
        self.place += len(data)
        masked = int.from_bytes(data, "big") ^ int.from_bytes(key[: len(data)], "big")
        return masked.to_bytes(len(data), "big")


class Validator:
    """Uses Python's own decoder instead of a byte-by-byte table."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.decoder = codecs.getincrementaldecoder("utf-8")()

    def validate(self, data):
        try:
            self.decoder.decode(bytes(data))
        except UnicodeDecodeError:
            return False, False, 0, 0
        return True, not self.decoder.getstate()[0], len(data), 0


protocol.createXorMasker = Masker
protocol.Utf8Validator = Validator


def wire(data):
    """The cases' Latin-1 strings as bytes."""
    return data.encode("latin-1") if isinstance(data, str) else data


class Fuzzing:
    """The interface that the cases expect of their connection."""

    createWirelog = True
    connectionWasOpen = False
    runCase = None

    def connectionMade(self):
        self.txFrameStats, self.rxFrameStats = {}, {}
        super().connectionMade()

    def begin(self, case):
        self.case = case
        self.runCase = case(self)
        self.runCase.compare = lambda one, other: one == other
        self.isText = not case.__name__.startswith(("Case12", "Case13"))
        self.began = time.monotonic()

    def text(self, data):
        return bytes(data).decode("latin-1") if self.isText else bytes(data)

    # Calls that the cases make.

    def sendFrame(self, opcode, payload=b"", mask=None, payload_len=None, **others):
        payload = wire(payload)
        if payload_len is not None:  # in 0.10.9, payload_len does not work on Python 3
            payload = (payload * (payload_len // len(payload) + 1))[:payload_len]
        if opcode not in self.txFrameStats:
            self.txFrameStats[opcode] = 0
        self.txFrameStats[opcode] += 1
        super().sendFrame(opcode, payload, mask=wire(mask) if mask else None, **others)

    def sendMessage(self, payload, *others, **more):
        super().sendMessage(wire(payload), *others, **more)

    def sendMessageFrameData(self, payload, *others, **more):
        return super().sendMessageFrameData(wire(payload), *others, **more)

    def sendCloseFrame(self, code=None, reasonUtf8=None, **others):
        super().sendCloseFrame(code, wire(reasonUtf8) if reasonUtf8 else reasonUtf8, **others)

    def enableWirelog(self, enable):
        pass

    def later(self, delay, action, unless):
        reactor.callLater(delay, lambda: None if self.state == unless else action())

    def continueLater(self, delay, action, tag=None):
        self.later(delay, action, protocol.WebSocketProtocol.STATE_CLOSED)

    def killAfter(self, delay):
        self.later(delay, self.failConnection, protocol.WebSocketProtocol.STATE_CLOSED)

    def closeAfter(self, delay):
        self.later(delay, self.sendClose, protocol.WebSocketProtocol.STATE_CLOSED)

    # Events that the cases receive.

    def logRxFrame(self, header, payload):
        self.rxFrameStats[header.opcode] = self.rxFrameStats.get(header.opcode, 0) + 1

    def logTxFrame(self, *facts):
        pass

    def logRxOctets(self, data):
        pass

    def logTxOctets(self, data, sync):
        pass

    def onOpen(self):
        self.connectionWasOpen = True
        if self.runCase:
            self.runCase.onOpen()

    def onMessage(self, payload, isBinary):
        if self.runCase:
            self.runCase.onMessage(self.text(payload), isBinary)

    def onPong(self, payload):
        if self.runCase:
            self.runCase.onPong(self.text(payload))

    def onPing(self, payload):
        if self.runCase:
            self.runCase.onPing(self.text(payload))
        super().onPing(payload)

    def onClose(self, wasClean, code, reason):
        if self.runCase:
            self.runCase.onClose(wasClean, code, reason)

    def connectionLost(self, reason):
        super().connectionLost(reason)
        if self.runCase:
            self.runCase.onConnectionLost(self.failedByMe)
            self.results.add(self)
            self.runCase = None


class Results:
    def __init__(self, case_set, ids):
        self.case_set, self.ids = case_set, ids
        self.table = {}

    def add(self, connection):
        name, run = self.case_set.caseClasstoId(connection.case), connection.runCase
        self.table[name] = (run.behavior, run.behaviorClose)
        seconds = time.monotonic() - connection.began
        if run.behavior != "OK" or run.behaviorClose != "OK" or seconds > 10:
            print(f"{name}: {run.behavior}, close {run.behaviorClose} ({run.result} {run.resultClose}), {seconds:.1f} s", flush=True)

    def judge(self):
        counts = {}
        for behavior, _ in self.table.values():
            counts[behavior] = counts.get(behavior, 0) + 1
        missing = [name for name in self.ids if name not in self.table]
        bad = {name: both for name, both in self.table.items() if both[0] not in ("OK", "INFORMATIONAL") or both[1] not in ("OK", "INFORMATIONAL")}
        print(json.dumps({"cases": len(self.ids), "results": counts, "missing": missing, "not OK": sorted(bad)}), flush=True)
        return 1 if bad or missing else 0


class ClientProtocol(Fuzzing, WebSocketClientProtocol):
    pass


class ClientFactory(WebSocketClientFactory):
    protocol = ClientProtocol
    logOctets = logFrames = True

    def __init__(self, url, results):
        super().__init__(url)
        self.setProtocolOptions(failByDrop=False)
        self.results = results
        self.left = list(results.ids)
        self.next()

    def next(self):
        if not self.left:
            reactor.stop()
            return
        self.current = self.results.case_set.CasesById[self.left.pop(0)]
        if self.isSecure:
            # The echo server's certificate is self-signed.
            reactor.connectSSL(self.host, self.port, self, CertificateOptions(verify=False))
        else:
            reactor.connectTCP(self.host, self.port, self)

    def buildProtocol(self, address):
        # An earlier case may have changed the options.
        self.setProtocolOptions(perMessageCompressionOffers=[], autoFragmentSize=0)
        connection = self.protocol()
        connection.factory = self
        connection.results = self.results
        connection.begin(self.current)
        return connection

    def clientConnectionLost(self, connector, reason):
        self.next()

    def clientConnectionFailed(self, connector, reason):
        print("no connection:", reason.getErrorMessage(), flush=True)
        reactor.stop()


class ServerProtocol(Fuzzing, WebSocketServerProtocol):
    def onConnect(self, request):
        self.results = self.factory.results
        self.wish = request.path
        if request.path == "/runCase":
            number = int(request.params["case"][0])
            self.begin(self.results.case_set.CasesById[self.results.ids[number - 1]])

    def onOpen(self):
        super().onOpen()
        if self.wish == "/getCaseCount":
            self.sendMessage(json.dumps(len(self.results.ids)).encode())
            self.sendClose()
        elif self.wish == "/updateReports":
            self.sendClose()
            reactor.callLater(0.5, reactor.stop)


class ServerFactory(WebSocketServerFactory):
    protocol = ServerProtocol
    logOctets = logFrames = True

    def __init__(self, url, results):
        super().__init__(url)
        self.setProtocolOptions(failByDrop=False)
        self.results = results


def main():
    mode, place, folder, *patterns = sys.argv[1:]
    sys.path.insert(0, folder)
    from cases import CaseBasename, CaseCategories, Cases, CaseSetname, CaseSubCategories
    from caseset import CaseSet

    case_set = CaseSet(CaseSetname, CaseBasename, Cases, CaseCategories, CaseSubCategories)
    ids = case_set.parseSpecCases({"cases": patterns or ["*"]})
    results = Results(case_set, ids)
    if mode == "client":
        ClientFactory(place, results)
    else:
        place, *files = place.split(",")
        factory = ServerFactory(f"{'wss' if files else 'ws'}://127.0.0.1:{place}", results)
        if files:
            pair = PrivateCertificate.loadPEM("".join(pathlib.Path(name).read_text() for name in files))
            port = reactor.listenSSL(int(place), factory, pair.options(), interface="127.0.0.1")
        else:
            port = reactor.listenTCP(int(place), factory, interface="127.0.0.1")
        print(f"listening on 127.0.0.1:{port.getHost().port}", flush=True)
    reactor.run()
    sys.exit(results.judge())


main()
