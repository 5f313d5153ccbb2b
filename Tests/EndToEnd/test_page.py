"""The files of the status page, as they are served: test_status_page.py has what they do in a browser."""
import gzip
import pathlib
import posixpath
import re
import ssl

import pytest
from admin import ask, place
from certificates import Authority
from kit import ROOT, Gateway, connect, receive_all

USERS = {"ada": {"token": "4f2d8c0a9b7e6d5c", "roles": {"*": "admin"}}}
FOLDER = ROOT / "Sources/CAdminPage/page"
XTERM = pathlib.Path("/usr/share/nodejs/xterm/lib")
TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
FILES = {"/" if path.name == "index.html" else f"/page/{path.name}": path for path in sorted(FOLDER.iterdir())}


def serving(**more) -> Gateway:
    gateway = Gateway({
        "admin": {"listen": "http://127.0.0.1:0"}, "routes": {"echo": {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo"}}, **more})
    gateway.expected += 1
    return gateway


def test_every_file_is_served_without_a_log_in_and_as_it_is():
    with serving(users=USERS) as gateway:
        assert len(FILES) > 10
        for path, file in FILES.items():
            answer = ask(gateway, f"GET {path}")
            assert (answer.status, answer.content) == (200, file.read_bytes()), path
            assert answer.fields["content-type"].split(";")[0] == TYPES[file.suffix[1:]]
            head = ask(gateway, f"HEAD {path}")
            assert (head.status, head.content, head.fields) == (200, b"", answer.fields)


def test_what_a_page_loads_is_there_and_nothing_comes_from_elsewhere():
    for file in FILES.values():
        text = file.read_text()
        for found in re.findall(r'(?:href|src)="(/[^"#]*)"|from "([^"]+)"', text):
            assert (found[0] or found[1]) in FILES, f"{file.name}: {found}"
        if file.suffix != ".svg":  # the namespace of SVG is a URL
            assert not re.search(r"https?://|\bstyle=|\bon\w+=\"|innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text), file.name
    page = (FOLDER / "index.html").read_text()
    preloaded = set(re.findall(r'rel="modulepreload" href="([^"]+)"', page))
    assert preloaded == {path for path in FILES if path.endswith(".js")} - {"/page/main.js"}


@pytest.mark.skipif(not XTERM.is_dir(), reason="no node-xterm here")
def test_the_terminal_consists_of_the_modules_of_the_package():
    with serving(users=USERS) as gateway:
        answer = ask(gateway, "GET /page/xterm.js")
        assert answer.status == 200 and answer.fields["content-type"] == "text/javascript; charset=utf-8"
        names = re.findall(r'^"([\w/]+)": function \(exports, require, module\) \{$', answer.text, re.M)
        assert len(names) > 40 and "public/Terminal" in names
        for name in names:
            text = (XTERM / f"{name}.js").read_text()
            assert f"{{\n{text}\n}},\n" in answer.text, name
            for path in re.findall(r'require\("([^"]+)"\)', text):
                assert posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) in names, f"{name} requires {path}"
        packed = ask(gateway, "GET /page/xterm.js", "Accept-Encoding: gzip")
        assert gzip.decompress(packed.content) == answer.content and len(packed.content) < 100_000
        assert ask(gateway, "GET /page/xterm.js", f"If-None-Match: {answer.fields['etag']}").status == 304
        assert ask(gateway, "GET /page/xterm.css").content == (XTERM / "xterm.css").read_bytes()


def test_a_browser_may_only_run_what_the_gateway_serves():
    with serving() as gateway:
        for path in [*FILES, *(["/page/xterm.js", "/page/xterm.css"] if XTERM.is_dir() else [])]:
            fields = ask(gateway, f"GET {path}").fields
            policy = dict(part.strip().split(" ", 1) for part in fields["content-security-policy"].split(";"))
            assert policy == {
                "default-src": "'none'", "script-src": "'self'", "style-src": "'self'", "connect-src": "'self'", "img-src": "'self' data:",
                "base-uri": "'none'", "form-action": "'none'", "frame-ancestors": "'none'"}
            assert fields["x-content-type-options"] == "nosniff" and fields["referrer-policy"] == "no-referrer"
            assert fields["cross-origin-resource-policy"] == "same-origin" and "set-cookie" not in fields


def test_a_file_is_compressed_for_those_that_say_so():
    with serving() as gateway:
        plain = ask(gateway, "GET /")
        for accepted, is_gzip in (
            ("gzip", True), ("br, GZIP;q=0.5, *", True), ("deflate, gzip; q=1.0", True), ("gzip;q=0", False), ("gzip;q=0.000", False),
            ("identity", False), ("xgzip", False),
        ):
            answer = ask(gateway, "GET /", f"Accept-Encoding: {accepted}")
            assert (answer.fields.get("content-encoding") == "gzip") == is_gzip, accepted
            content = gzip.decompress(answer.content) if is_gzip else answer.content
            assert content == plain.content and answer.fields["vary"] == "Accept-Encoding"
            assert (answer.fields["etag"] == plain.fields["etag"]) == (not is_gzip)
            assert int(answer.fields["content-length"]) == len(answer.content)
        assert len(ask(gateway, "GET /page/style.css", "Accept-Encoding: gzip").content) < len(FILES["/page/style.css"].read_bytes()) / 2


def test_a_file_that_a_browser_has_is_not_sent_again():
    with serving() as gateway:
        tags = {}
        for path in FILES:
            tags[path] = ask(gateway, f"GET {path}").fields["etag"]
            assert re.fullmatch(r'"[^"]+"', tags[path])
        assert len(set(tags.values())) == len(tags)
        tag = tags["/"]
        for known, status in (
            (tag, 304), (f"W/{tag}", 304), (f'"x", {tag}', 304), ("*", 304), ('"x"', 200), (tags["/page/main.js"], 200),
        ):
            answer = ask(gateway, "GET /", f"If-None-Match: {known}")
            assert answer.status == status, known
            assert answer.fields["etag"] == tag and answer.fields["cache-control"] == "no-cache"
            if status == 304:
                assert answer.content == b"" and "content-type" not in answer.fields and "content-security-policy" in answer.fields
        packed = ask(gateway, "GET /", "Accept-Encoding: gzip").fields["etag"]
        assert ask(gateway, "GET /", "Accept-Encoding: gzip", f"If-None-Match: {packed}").status == 304
        assert ask(gateway, "GET /", f"If-None-Match: {packed}").status == 200


@pytest.mark.parametrize("path", [
    "/page", "/page/", "/page/none.js", "/page/index.html", "/page/../healthz", "/page/..%2f..%2fetc/passwd", "/page//main.js",
    "/page/main.js/", "/PAGE/main.js", "//page/main.js", "/index.html", "/favicon.ico",
])
def test_a_path_that_is_none_leads_nowhere(path):
    with serving() as gateway:
        answer = ask(gateway, f"GET {path}")
        assert answer.status == 404 and answer.fields["content-type"] == "application/problem+json"
        assert answer.fields["content-security-policy"].startswith("default-src 'none'; frame")


def test_a_page_of_somebody_else_gets_no_file():
    """DNS rebinding: the page would then be one of that name, with scripts of ours."""
    with serving(users=USERS) as gateway:
        for path in ("/", "/page/main.js"):
            assert ask(gateway, f"GET {path}", host="evil.example").status == 403
            assert ask(gateway, f"POST {path}").fields["allow"] == "GET, HEAD"
        assert ask(gateway, "GET /?x=1").status == 400


def test_over_tls_browsers_are_told_to_come_by_tls_only(tmp_path):
    pair = Authority(tmp_path).issue("gateway", "localhost", "127.0.0.1")
    tls = {"certificate": str(pair.certificate), "key": str(pair.key)}
    with serving(admin={"listen": ["https://127.0.0.1:0", "http://127.0.0.1:0"]}, tls=tls) as gateway:
        gateway.event("listening", count=3)
        context = ssl._create_unverified_context()
        for path in ("/", "/api/v1/routes", "/healthz"):
            with context.wrap_socket(connect(place(gateway, "https"))) as client:
                client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                assert b"\r\nStrict-Transport-Security: max-age=" in receive_all(client).partition(b"\r\n\r\n")[0]
            assert "strict-transport-security" not in ask(gateway, f"GET {path}").fields


def test_a_script_asks_for_credentials_itself_and_other_programs_are_asked():
    with serving(users=USERS) as gateway:
        asked = ask(gateway, "GET /api/v1/user")
        assert asked.status == 401 and "Basic" in asked.fields["www-authenticate"]
        script = ask(gateway, "GET /api/v1/user", "X-Requested-With: page")
        assert script.status == 401 and script.fields["www-authenticate"] == "Bearer"


def test_a_route_on_the_same_port_can_not_take_the_paths_of_the_page():
    with serving() as gateway:
        port = place(gateway)[1]
        for path, code in (("/page/main.js", 78), ("/page", 78), ("/pages", 0)):
            gateway.configure({
                "admin": {"listen": f"http://127.0.0.1:{port}"},
                "routes": {"echo": {"listen": f"ws://127.0.0.1:{port}{path}", "endpoint": "sim://echo"}}})
            assert gateway.command("check", str(gateway.path)).returncode == code, path
