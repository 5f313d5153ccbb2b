"""The status page in Chromium, as its users do it: log in, look, change something, lose the gateway. test_page.py has its files."""
import json
import pathlib
import re
import signal
import socket
import time

import pytest
from admin import ask, place
from browser import AXE, Browser, needs_chromium
from kit import Gateway, Socat, connect, free_port, receive_all, round_trip, until
from test_admin import gateway_hash

pytestmark = [pytest.mark.heavy, needs_chromium]

ECHO = {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo"}
TOKEN = "4f2d8c0a9b7e6d5c"
#: A client of a WebSocket listener, by this token.
UPGRADE = (
    f"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    f"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nAuthorization: Bearer {TOKEN}\r\n\r\n").encode()
USERS = {"ada": {"token": TOKEN, "roles": {"*": "admin"}}, "bob": {"token": "0b1c2d3e4f506172", "roles": {"a": "monitor"}}}


def serving(routes=None, *, port=0, **more) -> Gateway:
    gateway = Gateway({"admin": {"listen": f"http://127.0.0.1:{port}"}, "routes": routes or {"a": ECHO, "b": ECHO}, **more})
    gateway.expected += 1
    return gateway


def home(gateway: Gateway) -> str:
    host, port = place(gateway)
    return f"http://{host}:{port}/"


def visit(browser: Browser, gateway: Gateway, view: str = ""):
    browser.open(f"{home(gateway)}#/{view}")
    browser.until("document.readyState === 'complete' && document.getElementById('gateway')?.hidden === false", "the figures")


def log_in(browser: Browser, gateway: Gateway, token: str = TOKEN):
    browser.open(home(gateway))
    browser.until("document.activeElement?.id === 'log-in-user'", "the form")
    browser.type("#log-in-token", token)
    browser.press("Enter")


def agree(browser: Browser):
    browser.until("document.querySelector('#confirmation').open", "the question")
    browser.click("#confirmation-yes")


def routes(browser: Browser) -> list[str]:
    return browser.texts("#routes tbody th")


def choose(browser: Browser, selector: str, value: str):
    browser.run(f"""(() => {{
        const element = document.querySelector('{selector}');
        element.value = {json.dumps(value)};
        element.dispatchEvent(new Event('input', {{ bubbles: true }}));
        element.dispatchEvent(new Event('change', {{ bubbles: true }}));
    }})()""")


@pytest.fixture
def browser():
    with Browser() as browser:
        yield browser
        assert browser.dialogs == []
        # An answer that is an error is one of the tests' own.
        assert [text for text in browser.complaints if "Failed to load resource" not in text] == []


def test_a_user_logs_in_and_out(browser):
    with serving(users=USERS) as gateway:
        log_in(browser, gateway, "wrong-wrong-wrong")
        browser.shows("#log-in-fault", "does not know these credentials")
        assert not browser.run("sessionStorage.length") and browser.text("#routes") == ""
        choose(browser, "#log-in-token", "")
        browser.type("#log-in-token", TOKEN)
        browser.click("#log-in button")
        browser.until("document.querySelectorAll('#routes tbody tr').length === 2", "the routes")
        assert browser.text("#user-name") == "ada" and browser.text("#connection") == "live"
        assert browser.run("document.cookie") == ""
        # The same tab may load the page again.
        browser.call("Page.reload")
        browser.until("document.getElementById('gateway')?.hidden === false", "the figures")
        browser.click("#log-out")
        browser.until("document.getElementById('log-in')?.hidden === false", "the form")
        assert not browser.run("sessionStorage.length") and browser.text("#gateway") == ""
        known = browser.run("import('/page/state.js').then(({ state }) => [state.status ?? null, state.lines, state.user])")
        assert known == [None, [], {"routes": {}}]


def test_answers_for_one_user_do_not_get_to_the_next(browser):
    with serving(users=USERS) as gateway:
        log_in(browser, gateway)
        browser.run("location.hash = '#/log'")
        browser.shows("#log-lines", "route=b")
        browser.run("""
            window.held = [];
            const send = window.fetch;
            window.fetch = async (path, options) => {
                const answer = await send(path, options);
                if (path === "/api/v1/log") await new Promise((resolve) => held.push(resolve));
                return answer;
            }; location.hash = '#/'; true""")
        browser.run("location.hash = '#/log'")
        browser.until("held.length === 1", "an answer for ada")
        browser.click("#log-out")
        browser.until("document.activeElement?.id === 'log-in-user'", "the form")
        browser.type("#log-in-token", USERS["bob"]["token"])
        browser.press("Enter")
        browser.shows("#user-name", "bob")
        browser.until("held.length === 2", "an answer for bob")
        browser.until("document.getElementById('gateway')?.hidden === false", "the figures")
        assert "route=b" not in browser.run("document.querySelector('#log-lines').textContent")
        browser.run("held[0](); true")
        browser.run("held[1](); true")
        browser.shows("#log-lines", "route=a")
        assert "route=b" not in browser.text("#log-lines") and "started" not in browser.text("#log-lines")


def test_a_gateway_that_does_not_answer_is_asked_by_one_loop(browser):
    with serving(users=USERS) as gateway:
        browser.open(home(gateway))
        browser.until("document.activeElement?.id === 'log-in-user'", "the form")
        browser.run("""
            Object.assign(window, { tried: 0, timers: new Map(), last: 1e9, real: { fetch, setTimeout, clearTimeout } });
            window.fetch = () => { tried += 1; return Promise.reject(new TypeError()); };
            window.setTimeout = (body) => { timers.set(last += 1, body); return last; };
            window.clearTimeout = (timer) => timers.delete(timer); true""")
        browser.type("#log-in-token", TOKEN)
        for tries in (1, 2, 3):
            browser.press("Enter")
            browser.until(f"tried === {tries} && timers.size > 0", "the next try is planned")
        assert browser.run("timers.size") == 1
        browser.run("""
            Object.assign(window, real);
            for (const body of timers.values()) body(); true""")
        browser.shows("#user-name", "ada")


def test_a_change_that_gets_no_answer_is_given_up(browser):
    with serving() as gateway:
        visit(browser, gateway)
        gateway.signal(signal.SIGSTOP)
        browser.run("const limit = AbortSignal.timeout; AbortSignal.timeout = () => limit.call(AbortSignal, 100); true")
        browser.click("#reload")
        agree(browser)
        browser.shows("#failure-text", "The gateway does not answer.")
        gateway.signal(signal.SIGCONT)


def test_a_user_logs_in_by_password(browser):
    users = {"öko": {"password": gateway_hash("geheim: ß".encode()), "roles": {"*": "monitor"}}}
    with serving(users=users) as gateway:
        browser.open(home(gateway))
        browser.until("document.activeElement?.id === 'log-in-user'", "the form")
        browser.type("#log-in-user", "öko")
        browser.type("#log-in-password", "geheim: ß")
        browser.press("Enter")
        browser.shows("#user-name", "öko")


def test_only_what_a_user_may_do_is_offered(browser):
    with serving(users=USERS) as gateway, gateway.connect("a") as client:
        round_trip(client)
        log_in(browser, gateway, USERS["bob"]["token"])
        browser.until("document.querySelectorAll('#routes tbody tr').length === 1", "its route")
        assert routes(browser) == ["a"] and not browser.text("#reload")
        browser.click("#routes tbody a")
        browser.until("document.querySelectorAll('#clients tbody tr').length === 1", "its client")
        assert "Kick" not in browser.text("#route-view") and "Reset" not in browser.text("#route-view")
        browser.run("location.hash = '#/devices'")
        browser.shows("#devices-fault", "needs the role")
        browser.run("location.hash = '#/routes/b'")
        browser.shows("#route-missing", "no such route")


def test_routes_are_found_filtered_sorted_and_in_pages(browser):
    """Of 300 routes only a page is in the document."""
    many = {f"route-{n}": ECHO for n in range(300)}
    many["gps"] = {**ECHO, "endpoint": "sim://nmea?rate=50"}
    with serving(many) as gateway, gateway.connect("route-7") as client, gateway.connect("gps") as reader:
        round_trip(client)
        visit(browser, gateway)
        assert len(routes(browser)) == 100 and routes(browser)[:3] == ["gps", "route-0", "route-1"]
        assert browser.text("#routes-count") == "301 routes"
        for _ in range(3):
            browser.click("#routes-pager button:last-child")
        assert routes(browser) == ["route-299"] and browser.text("#routes-pager span") == "301 to 301 of 301 routes"
        assert browser.run("document.querySelector('#routes-pager button:last-child').disabled")
        browser.type("#routes-search", "route-29")
        assert routes(browser) == ["route-29", *(f"route-{n}" for n in range(290, 300))]
        assert browser.text("#routes-count") == "11 of 301 routes"
        choose(browser, "#routes-search", f"127.0.0.1:{client.getsockname()[1]}")
        assert routes(browser) == ["route-7"]
        choose(browser, "#routes-search", "NMEA")
        assert routes(browser) == ["gps"]
        choose(browser, "#routes-search", gateway.event("listening", route="route-8")["listen"])
        assert routes(browser) == ["route-8"]
        choose(browser, "#routes-search", "")
        choose(browser, "#routes-filter", "clients")
        assert routes(browser) == ["gps", "route-7"]
        choose(browser, "#routes-filter", "busy")
        browser.until("document.querySelector('#routes tbody th')?.innerText === 'gps'", "the busy route")
        assert "/s" in browser.text("#routes tbody tr")
        choose(browser, "#routes-filter", "all")
        browser.click("#routes thead th:nth-child(3) button")
        assert browser.run("document.querySelector('#routes thead th:nth-child(3)').ariaSort") == "descending"
        assert set(routes(browser)[:2]) == {"gps", "route-7"}
        browser.click("#routes thead th:nth-child(3) button")
        assert browser.run("document.querySelector('#routes thead th:nth-child(3)').ariaSort") == "ascending"
        assert not {"gps", "route-7"} & set(routes(browser))
        assert reader


def test_routes_are_filtered_by_their_links(browser):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        names = {
            "gone": {**ECHO, "endpoint": "tty:///dev/nothing", "device": {"open": "always"}},
            "here": {**ECHO, "device": {"open": "always"}}, "idle": {**ECHO, "device": {"open": "on-demand"}},
            "late": {**ECHO, "listen": f"tcp://127.0.0.1:{taken.getsockname()[1]}", "device": {"open": "on-demand"}},
        }
        gateway = serving(names)
        gateway.ready = gateway.expected - 1
        with gateway:
            gateway.event("link open", route="here")
            gateway.event("link waiting", route="gone")
            visit(browser, gateway)
            for word, meant in (("open", ["here"]), ("waiting", ["gone"]), ("closed", ["idle", "late"]), ("problems", ["gone", "late"])):
                choose(browser, "#routes-filter", word)
                assert routes(browser) == meant, word


def test_users_are_found(browser):
    listen = {"listen": "ws://127.0.0.1:0/", "endpoint": "sim://echo"}
    with serving({"a": listen, "b": listen}, users=USERS) as gateway, connect(gateway.address("a")) as client:
        client.sendall(UPGRADE)
        gateway.event("session opened")
        log_in(browser, gateway)
        browser.until("document.querySelector('#routes tbody tr')?.innerText.includes('1/')", "the client")
        choose(browser, "#routes-search", "ADA")
        assert routes(browser) == ["a"]


def test_only_cells_that_changed_are_touched(browser):
    routes_ = {"gps": {**ECHO, "endpoint": "sim://nmea?rate=50"}, **{f"quiet-{n}": {**ECHO, "device": {"open": "on-demand"}} for n in range(20)}}
    with serving(routes_) as gateway, gateway.connect("gps"):
        visit(browser, gateway)
        browser.until("document.querySelector('#routes tbody tr').innerText.includes('/s')", "a rate")
        browser.run("""
            window.touched = new Set();
            window.rows = Array.from(document.querySelectorAll('#routes tbody tr'));
            new MutationObserver((all) => all.forEach(({ target }) => {
                const cell = (target.closest ? target : target.parentElement).closest('td, th');
                touched.add(cell ? cell.parentElement.dataset.key + ' ' + cell.cellIndex : target.nodeName);
            })).observe(document.querySelector('#routes'), { childList: true, subtree: true, characterData: true }); true""")
        browser.until("touched.has('gps 4')", "another rate")
        # How long a link has been in its state changes in all rows; of the others nothing else does.
        touched = set(browser.run("[...touched]"))
        assert {cell for cell in touched if cell.startswith("quiet") and not cell.endswith(" 1")} == set()
        assert "TBODY" not in touched and browser.run("rows.every((row) => row.isConnected)")


def test_a_client_is_kicked_after_a_question(browser):
    with serving(users=USERS) as gateway:
        log_in(browser, gateway)
        clients = [gateway.connect("a") for _ in range(3)]
        numbers = [gateway.event("session opened", count=n + 1)["session"] for n in range(3)]
        browser.until("document.getElementById('gateway')?.hidden === false", "the figures")
        browser.run("location.hash = '#/routes/a'")
        browser.until("document.querySelectorAll('#clients tbody tr').length === 3", "the clients")
        kick = f"#clients tr[data-key='{numbers[1]}'] button"
        browser.click(kick)
        browser.shows("#confirmation-title", f"Kick session {numbers[1]}?")
        browser.press("Escape")
        browser.until("!document.querySelector('#confirmation').open", "no question")
        # The focus is where it was.
        assert browser.run(f"document.activeElement === document.querySelector(\"{kick}\")")
        for client in clients:
            round_trip(client)
        browser.press("Enter")
        browser.until("document.querySelector('#confirmation').open", "the question")
        # The end of a question does not answer the next one.
        browser.run(f"document.querySelector('#confirmation').close('no'); document.querySelector(\"{kick}\").click()")
        browser.until("document.querySelector('#confirmation').open", "the question")
        browser.press("Enter")
        browser.shows("#toast", f"Session {numbers[1]} was ended")
        receive_all(clients[1])  # to its end
        assert gateway.event("admin kick")["user"] == "ada"
        browser.until("document.querySelectorAll('#clients tbody tr').length === 2", "the others")
        # The button that had the focus is gone.
        assert browser.run("document.activeElement.id") == "route-title"
        browser.click("#route-kick-all")
        browser.shows("#confirmation-text", "2 sessions will end")
        agree(browser)
        browser.shows("#toast", "2 sessions ended")
        browser.until("document.querySelectorAll('#clients tbody tr').length === 0", "no client")
        for client in clients:
            receive_all(client)
            client.close()


def test_a_mistake_in_the_file_is_shown_with_line_and_column(browser):
    with serving() as gateway:
        visit(browser, gateway)
        gateway.path.write_text('version: 1\nadmin: { listen: "http://127.0.0.1:0" }\nroutes:\n  a:\n    listen: tcp://127.0.0.1:0\n    endpoint: tyy:///dev/ttyUSB0\n')
        browser.click("#reload")
        agree(browser)
        browser.until("document.querySelector('#failure').open", "the failure")
        assert browser.texts("#failure-rows td") == [
            "config.yaml", "6", "15", "routes.a.endpoint: unknown scheme 'tyy'; did you mean 'tty'?"]
        browser.press("Escape")
        browser.shows("#problems", "config.yaml:6:15: routes.a.endpoint: unknown scheme")
        gateway.configure({"admin": {"listen": "http://127.0.0.1:0"}, "routes": {"a": ECHO, "new": ECHO}})
        browser.click("#reload")
        agree(browser)
        browser.shows("#toast", "added new; removed b")
        browser.shows("#problems-title", "Everything works")
        browser.until("[...document.querySelectorAll('#routes tbody th')].map((one) => one.innerText).join() === 'a,new'", "the new routes")
        # What the user may do is asked again.
        browser.run("location.hash = '#/routes/new'")
        browser.shows("#route-actions", "Kick all clients")


def test_a_reset_that_is_not_possible_says_why(browser):
    with serving() as gateway:
        visit(browser, gateway, "routes/a")
        browser.click("#route-reset")
        browser.type("#confirmation-value", "esp32")
        browser.press("Enter")
        browser.until("document.querySelector('#failure').open", "the failure")
        assert browser.text("#failure-title") == "The device was not reset" and browser.text("#failure-text")
        assert gateway.event("admin reset")["detail"] == "esp32"


def test_a_port_is_released_and_reopened(browser):
    with serving() as gateway, gateway.connect("a"):
        visit(browser, gateway, "routes/a")
        browser.shows("#route-badge", "open")
        browser.click("#route-release")
        browser.shows("#confirmation-text", "another program can use it")
        agree(browser)
        browser.shows("#toast", "The port of a was released")
        browser.shows("#problems", "a has released its port")
        browser.shows("#route-release", "Reopen port")
        browser.shows("#route-badge", "released")
        browser.click("#route-release")
        agree(browser)
        browser.shows("#toast", "The link of a is")
        browser.shows("#problems-title", "Nothing is wrong here")
        assert gateway.event("admin reopen")["route"] == "a"


def test_a_port_is_unplugged_and_plugged_in(browser, folder):
    def port():
        ends = [f"{folder}/port", f"{folder}/far"]
        return Socat(*(f"pty,raw,echo=0,link={end}" for end in ends), links=ends)

    with port() as device:
        board = {"listen": "tcp://127.0.0.1:0", "endpoint": f"tty://{folder}/port", "device": {"open": "always", "retry": "100ms..100ms"}}
        with serving({"board": board}) as gateway:
            gateway.event("link open")
            visit(browser, gateway)
            browser.shows("#problems-title", "Everything works")
            browser.shows("#routes tbody", "open")
            device.kill()
            browser.shows("#problems", "board waits for its device")
            browser.shows("#problems", "not plugged in?")
            browser.shows("#routes tbody", "waiting")
            assert browser.text("#announcement") == "New problem: board waits for its device"
            assert browser.run("document.title").startswith("(1) ")
            with port():
                browser.shows("#problems-title", "Everything works")
                assert browser.text("#announcement") == "Solved: board waits for its device"
                browser.click("#routes tbody a")
                browser.shows("#route-lines", "link lost")


def test_a_recording_that_has_stopped_is_shown_until_it_goes_on(browser, folder):
    in_the_way = pathlib.Path(folder, "file")
    in_the_way.write_text("")
    recorded = {**ECHO, "capture": {"file": f"{folder}/file/x.raw", "format": "raw"}}
    with serving({"a": recorded, "b": ECHO}) as gateway:
        gateway.event("recording stopped")
        visit(browser, gateway)
        browser.shows("#problems", "a: the recording has stopped")
        assert "ENOTDIR" in browser.text("#problems") and "then reload" in browser.text("#problems")
        choose(browser, "#routes-filter", "problems")
        assert routes(browser) == ["a"]
        browser.click("#routes tbody a")
        browser.shows("#route-facts", "stopped, 0\u00a0B written")
        browser.shows("#route-lines li[data-mood=busy]", "recording stopped")
        in_the_way.unlink()
        with gateway.connect("a") as client:
            round_trip(client)
            browser.shows("#route-facts", "2\u00a0B missing")
            browser.click("#reload")
            agree(browser)
            browser.until("!document.querySelector('#problems').innerText.includes('stopped')", "it goes on")
            # For a minute the page tells that it lacks something.
            browser.shows("#problems", "a: bytes are missing in the recording")
            browser.shows("#route-facts", f"{folder}/file/x.raw, 0\u00a0B written")
            round_trip(client)
            browser.shows("#route-facts", "2\u00a0B written, 2\u00a0B missing")


def test_each_problem_says_since_when_and_what_to_do(browser):
    """Those that no test of this machine can cause, by an answer that has them."""
    with serving() as gateway:
        visit(browser, gateway)
        shown = browser.run("""(async () => {
            const { state } = await import('/page/state.js');
            const given = structuredClone(state.status);
            const say = (change, ofGateway = {}) => {
                const route = { ...given.routes[0], ...change };
                state.setStatus({ ...given, ...ofGateway, seconds: state.status.seconds + 1, routes: [route] });
                return Array.from(document.querySelectorAll('#problems li'), (one) => one.innerText.replace(/\\s+/g, ' '));
            };
            const link = { word: 'open', seconds: 1 };
            const [listener] = given.routes[0].listeners;
            const waiting = { ...listener, state: 'waiting', seconds: 65, error: 'bind: EADDRINUSE', retry: 4 };
            return {
                reload: say({}, { 'reload-failed': { seconds: 65, problems: ['x:1:2: a'], more: 3 } }),
                certificate: say({}, { 'certificate-faults': ['/c.pem: expired'] }),
                admin: say({}, { admin: [waiting] }),
                listener: say({ listeners: [waiting] }),
                limited: say({ listeners: [{ ...listener, limited: 'only IPv4' }] }),
                stuck: say({ stuck: true }),
                released: say({ state: { ...link, released: true, seconds: 65 } }),
                away: say({ state: { word: 'waiting', seconds: 65, reason: 'open: ENOENT', retry: 4 } }),
                own: say({ state: undefined, links: { waiting: 2 } }),
                xoff: say({ state: { ...link, held: { by: 'xoff', seconds: 65 } } }),
                cts: say({ state: { ...link, held: { by: 'cts', seconds: 65 } } }),
                overrun: say({ state: { ...link, overrun: 3 } }),
                queue: say({ queued: 2 }),
                nothing: say({}),
                drops: say({ totals: { ...given.routes[0].totals, dropped: 2048 } }),
                worst: say({ queued: 1 }, { 'reload-failed': { seconds: 1, problems: [] } }),
            };
        })()""")
        for name, (words, seconds, advice) in {
            "reload": ("The last reload changed nothing", "since 1m 5s", "and 3 more Correct the file, then reload"),
            "certificate": ("A certificate file can't be used", "", "/c.pem: expired Correct the file"),
            "admin": ("The admin listener does not listen on", "since 1m 5s", "End the program that has the address, or change it. Next try in 4s."),
            "listener": ("a does not listen on", "since 1m 5s", "bind: EADDRINUSE End the program that has the address, or change it."),
            "limited": ("Not all clients reach a on", "", "only IPv4"), "stuck": ("a does not answer", "", "Restart the gateway if this stays."),
            "released": ("a has released its port", "since 1m 5s", "Reopen it when the other program has finished."),
            "away": ("a waits for its device", "since 1m 5s", "open: ENOENT Next try in 4s."), "own": ("a: 2 links can't be opened", "", ""),
            "xoff": ("a: flow control holds the output", "since 1m 5s", "It goes on when the device sends XON."),
            "cts": ("a: flow control holds the output", "since 1m 5s", "does not raise CTS. Check the device and its cable"),
            "overrun": ("a: the port has lost 3 bytes since it was opened", "", "Set flow=rtscts in the endpoint"),
            "queue": ("a is full: 2 clients in the queue", "", "Kick a client, or raise clients.max."),
            "drops": ("a drops bytes", "", "2.0 KiB since the route began, some of them within the last minute. A client reads too slowly"),
        }.items():
            [problem] = shown[name]
            assert words in problem and seconds in problem and advice in problem, (name, problem)
            assert ("since 1m" in problem) == bool(seconds), (name, problem)
        assert shown["nothing"] == []
        # The worst first; the loss is still one of the last minute.
        assert ["The last reload" in shown["worst"][0], "a drops bytes" in shown["worst"][1], "is full" in shown["worst"][2]] == [True] * 3


def test_of_many_problems_some_are_shown_until_all_are_asked_for(browser):
    gone = {f"gone-{n}": {**ECHO, "endpoint": f"tty:///dev/nothing-{n}", "device": {"open": "always"}} for n in range(8)}
    with serving(gone) as gateway:
        visit(browser, gateway)
        browser.shows("#problems-title", "8 problems")
        assert len(browser.texts("#problems li")) == 6 and browser.text("#problems-all") == "Show all of 8"
        browser.click("#problems-all")
        assert len(browser.texts("#problems li")) == 8
        browser.click("#problems-all")
        assert len(browser.texts("#problems li")) == 6
        browser.click("#problems li a")
        browser.shows("#problems-title", "1 problem")
        assert len(browser.texts("#problems li")) == 1


def test_a_loss_is_a_problem_for_a_minute(browser):
    with serving() as gateway:
        visit(browser, gateway)
        told = browser.run("""(async () => {
            const { state } = await import('/page/state.js');
            const given = structuredClone(state.status);
            const say = (seconds, dropped) => {
                const totals = { ...given.routes[0].totals, dropped };
                state.setStatus({ ...given, seconds: given.seconds + seconds, routes: [{ ...given.routes[0], totals }] });
                return state.hasRecentLoss('a');
            };
            const answers = [say(1, 0), say(2, 5)];
            performance.now = () => state.received + 59000;
            answers.push(say(3, 5));
            const { received } = state;
            performance.now = () => received + 2000;
            return [...answers, say(4, 5)];
        })()""")
        assert told == [False, True, True, False]


def test_rates_are_those_between_two_answers(browser):
    with serving() as gateway:
        visit(browser, gateway)
        rows = browser.run("""(async () => {
            const { state } = await import('/page/state.js');
            const given = structuredClone(state.status);
            const say = (seconds, up, down) => {
                const totals = { ...given.routes[0].totals, up, down };
                state.setStatus({ ...given, seconds: given.seconds + seconds, routes: [{ ...given.routes[0], totals }] });
                return Array.from(document.querySelectorAll('#routes tbody tr > *'), (one) => one.innerText).slice(3, 5);
            };
            return [say(10, 0, 0), say(12, 2048, 4), say(14, 2048, 4)];
        })()""")
        assert rows == [["–", "–"], ["1.0\u00a0KiB/s", "2\u00a0B/s"], ["–", "–"]]


def test_a_route_shows_its_facts_clients_listeners_and_endings(browser):
    routes_ = {"a": {**ECHO, "clients": {"max": 3, "half-close": "100ms"}}}
    with serving(routes_) as gateway:
        with gateway.connect("a") as client:
            round_trip(client)
            gateway.event("session opened")
        gateway.event("session ended")
        with gateway.connect("a") as client:
            round_trip(client)
            visit(browser, gateway, "routes/a")
            browser.until("document.querySelectorAll('#clients tbody tr').length === 1", "the client")
            row = browser.texts("#clients tbody tr > *")
            assert row[1] == "%s:%d" % client.getsockname() and row[3] == row[4] == "1\u00a0B" and row[7].startswith("tcp://127.0.0.1:")
            assert browser.texts("#endings tbody tr > *") == ["client-left", "1"]
            assert browser.texts("#listeners tbody tr > *")[0] == "tcp://%s:%d" % client.getpeername()
            assert browser.texts("#listeners tbody tr > *")[1].startswith("listening ")
            assert browser.text("#summary").startswith("1 route, 1 client, up ")
            shown = dict(zip(browser.texts("#route-facts dt"), browser.texts("#route-facts dd"), strict=True))
            assert {k: v for k, v in shown.items() if k in ("Endpoint", "Link", "Clients", "Up", "Down", "Dropped")} == {
                "Endpoint": "sim://echo", "Link": "shared", "Clients": "1 of 3", "Up": "2\u00a0B", "Down": "2\u00a0B", "Dropped": "0\u00a0B"}
            # What only a serial port and some clients have.
            told = browser.run("""(async () => {
                const { state } = await import('/page/state.js');
                const [route] = structuredClone(state.status.routes);
                route.state = { word: 'open', seconds: 1, line: '9600 8N1', device: { name: 'FT232R', serial: 'A1' } };
                Object.assign(route.totals, { 'line-changes': 3, 'line-refusals': 1 });
                const client = { writer: true, role: 'monitor', user: 'ada', tls: 'TLS 1.3', dropped: 1024, 'queued-up': 1, 'queued-down': 2 };
                Object.assign(route.clients[0], client);
                state.setStatus({ ...state.status, routes: [route] });
                const texts = (selector) => Array.from(document.querySelectorAll(selector), (one) => one.innerText);
                return [texts('#route-facts dt'), texts('#route-facts dd'), texts('#clients tbody tr > *')];
            })()""")
            shown = dict(zip(told[0], told[1], strict=True))
            assert (shown["Line"], shown["Device"], shown["Line changes"]) == ("9600 8N1", "name FT232R, serial A1", "3, refused 1")
            assert told[2][5:7] == ["3\u00a0B", "1.0\u00a0KiB"] and told[2][8] == "writer, monitor, ada, TLS 1.3"


def test_ports_and_adapters_are_listed_with_their_holders(browser):
    """By an answer of a machine that has some."""
    answer = {
        "serial": [
            {"url": "usb:///FTDI/A1", "node": "/dev/ttyUSB0", "links": ["/dev/serial/by-id/x"],
             "usb": {"manufacturer": "FTDI", "name": "FT232R", "serial": "A1"}, "held-by": [{"program": "minicom", "pid": 17}, {"pid": 18}]},
            {"url": "tty:///dev/ttyS0", "node": "/dev/ttyS0", "links": [], "driver": "serial8250", "error": "open: EACCES"}],
        "bluetooth": [
            {"adapter": "hci0", "address": "00:11:22:33:44:55", "on": True}, {"adapter": "hci1", "address": "00:11:22:33:44:56", "on": False}],
    }
    with serving() as gateway:
        visit(browser, gateway)
        browser.run(f"""
            window.asked = 0;
            const send = window.fetch;
            window.fetch = (path, options) => {{
                if (path !== "/api/v1/devices") return send(path, options);
                asked += 1;
                return Promise.resolve(new Response(JSON.stringify({json.dumps(answer)})));
            }}; location.hash = '#/devices'; true""")
        browser.until("document.querySelectorAll('#ports tbody tr').length === 2", "the ports")
        rows = browser.run("Array.from(document.querySelectorAll('#ports tbody tr'), (row) => Array.from(row.children, (cell) => cell.innerText))")
        assert rows == [
            ["tty:///dev/ttyS0", "/dev/ttyS0", "serial8250", "–", "open: EACCES"],
            ["usb:///FTDI/A1", "/dev/ttyUSB0", "FTDI, FT232R, A1", "minicom (17), a program (18)", ""]]
        assert browser.texts("#adapters tbody tr") == ["hci0\t00:11:22:33:44:55\ton", "hci1\t00:11:22:33:44:56\toff"]
        browser.click("#devices-again")
        browser.until("asked === 2", "another look")


def test_bytes_that_a_recording_lacks_are_a_problem_for_a_minute(browser):
    with serving() as gateway:
        visit(browser, gateway)
        titles = browser.run("""(async () => {
            const { state } = await import('/page/state.js');
            const { find } = await import('/page/problems.js');
            const given = structuredClone(state.status);
            const say = (seconds, capture) => {
                state.setStatus({ ...structuredClone(given), seconds, routes: [{ ...given.routes[0], capture }] });
                return find(state.status).map(({ title }) => title).join();
            };
            const capture = { file: "/x", written: 1, dropped: 5 };
            return [say(given.seconds + 1, capture), say(given.seconds + 2, { ...capture, dropped: 6 }),
                    say(given.seconds + 3, { ...capture, dropped: 7, error: "write: ENOSPC" })];
        })()""")
        assert titles == ["", "a: bytes are missing in the recording", "a: the recording has stopped"]


def test_the_page_comes_back_with_the_gateway(browser):
    port = free_port()
    with serving(port=port, users=USERS) as gateway:
        log_in(browser, gateway)
        browser.shows("#connection", "live")
        with gateway.connect("a") as client:
            round_trip(client)
            browser.until("document.querySelector('#routes tbody tr')?.innerText.includes('1/')", "the client")
    browser.shows("#connection", "disconnected")
    assert browser.run("document.body.classList.contains('stale')")
    assert routes(browser) == ["a", "b"]  # what was known last
    with serving({"a": ECHO, "c": ECHO}, port=port, users=USERS):
        browser.shows("#connection", "live")
        browser.until("[...document.querySelectorAll('#routes tbody th')].map((one) => one.innerText).join() === 'a,c'", "the new routes")
        assert not browser.run("document.body.classList.contains('stale')")
        # It has got the events of the new process from its start on.
        browser.until("import('/page/state.js').then(({ state }) => state.lines.some(({ event }) => event === 'started'))", "the start")


@pytest.mark.waits
def test_a_hidden_page_gives_its_connection_back(browser):
    """Browsers have six for all tabs. What happened meanwhile is not lost."""
    with serving() as gateway:
        visit(browser, gateway)
        browser.shows("#connection", "live")

        def hide(is_hidden: str):
            browser.run(f"""Object.defineProperty(document, 'hidden', {{ value: {is_hidden}, configurable: true }});
                document.dispatchEvent(new Event('visibilitychange')); true""")

        def connections() -> int:
            return int(re.search(r"^baudway_admin_connections (\d+)", ask(gateway, "GET /metrics").text, re.M)[1])
        hide("true")
        assert connections() >= 2  # the stream, and this request
        until(lambda: connections() == 1, what="no stream")
        assert browser.text("#connection") == "live"  # nothing is wrong
        with gateway.connect("b") as client:
            round_trip(client)
        gateway.event("session ended")
        hide("false")
        browser.until("import('/page/state.js').then(({ state }) => state.lines.some(({ event }) => event === 'session opened'))", "the event")


def test_a_user_that_a_reload_removed_logs_in_again(browser):
    with serving(users=USERS) as gateway:
        log_in(browser, gateway)
        browser.shows("#connection", "live")
        gateway.configure({"admin": {"listen": f"http://127.0.0.1:{place(gateway)[1]}"}, "users": {"bob": USERS["bob"]}, "routes": {"a": ECHO}})
        gateway.signal(1)
        browser.shows("#log-in-fault", "Log in again")
        assert browser.text("#routes") == "" and not browser.run("sessionStorage.length")


HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"


def test_hostile_names_are_text(browser, folder):
    """In an endpoint and its failure, the name of a user, a path that somebody asked for, and a problem of the file."""
    encoded = "".join(f"%{byte:02x}" for byte in HOSTILE.replace("/", "|").encode())
    names = {
        "evil": {"listen": "tcp://127.0.0.1:0", "endpoint": f"unix:///{folder}/{encoded}", "link": "shared", "device": {"open": "always"}},
        "a": {"listen": "ws://127.0.0.1:0/", "endpoint": "sim://echo"},
    }
    with serving(names, users={HOSTILE: {"token": TOKEN, "roles": {"*": "admin"}}}) as gateway:
        address = gateway.address("a")
        with connect(address) as client:
            client.sendall(UPGRADE)
            gateway.event("session opened")
            ask(gateway, f"GET /{encoded}")
            log_in(browser, gateway)
            browser.shows("#user-name", HOSTILE)
            browser.shows("#problems", "<img src=x onerror=alert(1)>")
            browser.shows("#routes", "evil")
            browser.run("location.hash = '#/routes/a'")
            browser.shows("#clients", HOSTILE)
            browser.shows("#route-lines", "<img src=x")
            browser.run("location.hash = '#/routes/evil'")
            browser.shows("#problems", "<img src=x")
            browser.run("location.hash = '#/log'")
            browser.shows("#log-lines", "<img src=x")
            browser.run(f"location.hash = '#/routes/' + encodeURIComponent({json.dumps(HOSTILE)})")
            browser.shows("#route-title", HOSTILE)
            gateway.path.write_text(json.dumps({"version": 1, "routes": {HOSTILE: ECHO}, HOSTILE: 1}))
            browser.click("#reload")
            agree(browser)
            browser.shows("#failure-rows", "<img src=x")
            assert browser.run("document.images.length + document.querySelectorAll('body script').length") == 0


def test_the_log_of_a_route_grows_while_it_is_looked_at(browser):
    with serving() as gateway:
        with gateway.connect("a") as client:
            round_trip(client)
            visit(browser, gateway, "routes/a")
            browser.shows("#route-lines", "session opened")
            before = browser.run("document.querySelectorAll('#route-lines li').length")
            with gateway.connect("b") as other:
                round_trip(other)
        browser.shows("#route-lines", "session ended")
        lines = browser.texts("#route-lines li")
        assert len(lines) == before + len([line for line in lines if "session ended" in line or "link closed" in line])
        assert all("route=a" in line for line in lines) and len(set(lines)) == len(lines)
        browser.run("location.hash = '#/log'")
        browser.shows("#log-lines", "started")
        with gateway.connect("b") as other:
            round_trip(other)
            browser.until("document.querySelector('#log-lines li').innerText.includes('link open')", "a line that comes meanwhile, as the first")
        gateway.event("session ended", count=3)
        choose(browser, "#log-search", "session OPENED")
        assert {line.split("session=")[0].split(" ", 1)[1] for line in browser.texts("#log-lines li")} == {"info session opened "}
        choose(browser, "#log-search", "")
        choose(browser, "#log-level", "warning")
        assert browser.texts("#log-lines li") == []


def test_lines_of_an_answer_and_of_events_are_one_list(browser):
    """Either may have a line that the other has not, and that is older or newer."""
    def line(number, second):
        return {"id": f"x-{number}", "time": f"2026-11-27T10:00:{second:02}.000Z", "level": "info", "event": "e"}
    with serving() as gateway:
        visit(browser, gateway)
        given = json.dumps([[line(2, 2), line(3, 3), line(4, 3)], [line(1, 1), line(3, 3), line(5, 3), line(6, 7)]])
        merged = browser.run(f"import('/page/log.js').then(({{ merge }}) => merge(...{given}).map(({{ id }}) => id))")
        assert merged == ["x-1", "x-2", "x-3", "x-4", "x-5", "x-6"]
        many = json.dumps([line(n, 0) for n in range(600)])
        assert browser.run(f"import('/page/log.js').then(({{ merge }}) => merge({many}, []).length)") == 500


def test_the_keyboard_reaches_everything(browser):
    with serving() as gateway:
        visit(browser, gateway)
        reached = []
        for _ in range(40):
            browser.press("Tab")
            name = browser.run("document.activeElement.id || document.activeElement.innerText")
            if name in reached:
                break
            reached.append(name)
        assert reached[:4] == ["skip", "Baudway", "Routes", "Devices"]
        assert {"reload", "routes-search", "routes-filter", "a", "b", "Clients"} <= set(reached)
        browser.run("document.getElementById('skip').focus()")
        browser.press("Enter")
        assert browser.run("document.activeElement.id") == "main" and browser.run("location.hash") == "#/"
        browser.run("document.querySelector('#routes tbody a').focus()")
        browser.press("Enter")
        browser.until("document.activeElement?.id === 'route-title'", "the heading of the view")
        # A row keeps the focus while the table is drawn again.
        browser.run("location.hash = '#/'")
        browser.until("document.activeElement?.id === 'routes-title'", "the heading of the list")
        browser.run("document.querySelector('#routes tbody tr:last-child a').focus()")
        with gateway.connect("a") as client:
            round_trip(client)
            browser.shows("#routes tbody tr", "1/")
        assert browser.run("document.activeElement.innerText") == "b"


@pytest.mark.skipif(not AXE.exists(), reason="no axe-core: run Tests/EndToEnd/axe.sh")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_is_accessible(browser, scheme, width):
    """And nothing is wider than the window."""
    found = []

    def look(what):
        found.extend(f"{what}: {one}" for one in browser.violations())
        # What axe-core takes a placeholder for, or has no rule for.
        found.extend(f"{what}: {one}" for one in browser.run("""[
            ...[...document.querySelectorAll('input, select')].filter((one) => !one.labels.length && !one.ariaLabel).map((one) => `no label of ${one.id}`),
            ...[...document.querySelectorAll('dialog')].filter((one) => !one.querySelector(`#${one.getAttribute('aria-labelledby')}`))
                .map((one) => `no name of ${one.id}`),
            ...[...document.querySelectorAll('.lines')].filter((one) => one.tabIndex !== 0).map((one) => `no key scrolls ${one.id}`),
        ]"""))
        back = browser.run("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).reduce((sum, one) => sum + Number(one), 0)")
        if (back < 384) != (scheme == "dark"):
            found.append(f"{what}: it is not {scheme}")
        if (needed := browser.call("Page.getLayoutMetrics")["cssContentSize"]["width"]) > width:
            found.append(f"{what}: it takes {needed} pixels")

    with socket.create_server(("127.0.0.1", 0)) as taken:
        names = {
            "a": ECHO, "b": {**ECHO, "device": {"open": "always"}}, "gone": {**ECHO, "endpoint": "tty:///dev/nothing?baud=9600", "device": {"open": "always"}},
            "late": {**ECHO, "listen": f"tcp://127.0.0.1:{taken.getsockname()[1]}"},
        }
        gateway = serving(names, users=USERS)
        gateway.ready = gateway.expected - 1
        browser.resize(width, 800)
        browser.scheme(scheme)
        with gateway, gateway.connect("a") as client:
            round_trip(client)
            browser.open(home(gateway))
            browser.until("document.activeElement?.id === 'log-in-user'", "the form")
            look("log-in")
            log_in(browser, gateway)
            browser.shows("#problems", "late does not listen")
            browser.shows("#problems", "gone waits")
            look("routes")
            # A phone has no room for every column.
            assert browser.run("document.querySelector('#routes thead .minor').checkVisibility()") == (width > 1000)
            for view, ready in (("routes/a", "#clients tbody"), ("routes/gone", "#route-facts"), ("devices", "#adapters"), ("log", "#log-lines li")):
                browser.run(f"location.hash = '#/{view}'")
                browser.until(f"Boolean(document.querySelector({json.dumps(ready)})?.innerText)", view)
                look(view)
            browser.run("location.hash = '#/routes/a'")
            browser.click("#route-reset")
            browser.until("document.querySelector('#confirmation').open", "the question")
            look("question")
            browser.press("Escape")
            gateway.path.write_text("version: 1\nroutes: { a: { listn: x } }")
            browser.click("#reload")
            agree(browser)
            browser.until("document.querySelector('#failure').open", "the failure")
            look("failure")
            browser.press("Escape")
        browser.shows("#connection", "disconnected")
        look("disconnected")
    assert found == []


@pytest.mark.measured
def test_two_thousand_routes_are_no_work_for_the_browser(browser):
    """The figure: processor time of the page, beside that of an empty one."""
    many = {f"route-{n}": {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://nmea?rate=20" if n < 50 else "sim://echo"} for n in range(2000)}
    gateway = serving(many)
    with gateway:
        clients = [gateway.connect(f"route-{n}") for n in range(50)]
        browser.call("Performance.enable")

        def task_seconds() -> float:
            began = {m["name"]: m["value"] for m in browser.call("Performance.getMetrics")["metrics"]}["TaskDuration"]
            time.sleep(20)
            return {m["name"]: m["value"] for m in browser.call("Performance.getMetrics")["metrics"]}["TaskDuration"] - began
        empty = task_seconds()
        visit(browser, gateway)
        browser.until("document.querySelector('#routes tbody tr').innerText.includes('/s')", "a rate")
        busy = task_seconds()
        print(f"TaskDuration in 20 s: {busy:.3f} s with 2,000 routes, {empty:.3f} s for an empty page")
        assert browser.run("document.querySelectorAll('*').length") < 3000
        # A slow machine takes longer; ten times as much would be work for every row.
        assert busy < 10
        for client in clients:
            client.close()
        until(lambda: not gateway.process.poll(), what="it works")
