"""A terminal of the status page in Chromium: what its user does, and what is on its screen."""
import contextlib
import json

from browser import Browser
from kit import until

LINES = "import('/page/terminal.js').then((terminal) => terminal.lines())"


@contextlib.contextmanager
def watched_browser():
    """It ends without a dialog or a complaint, but for those of a gateway that is gone and of answers that are errors."""
    with Browser() as browser:
        yield browser
        assert browser.dialogs == []
        own = ("Failed to load resource", "WebSocket connection to")
        assert [text for text in browser.complaints if not any(word in text for word in own)] == []


def connected(browser: Browser):
    browser.until("document.querySelector('#terminal-state')?.innerText === 'connected'", "connected")
    browser.until("document.querySelector('#terminal-link')?.innerText === 'device open'", "the device is open")


def keys(browser: Browser, text: str):
    """As a keyboard does it."""
    browser.run("document.querySelector('#terminal-screen textarea').focus()")
    for letter in text:
        if letter == "\r":
            browser.press("Enter")
        else:
            browser.call("Input.dispatchKeyEvent", type="keyDown", text=letter, key=letter, unmodifiedText=letter)
            browser.call("Input.dispatchKeyEvent", type="keyUp", key=letter)


def lines(browser: Browser) -> list[str]:
    return [line for line in browser.run(LINES) if line]


def shows(browser: Browser, words: str):
    until(lambda: any(words in line for line in lines(browser)), what=f"{words!r} on the screen", every=0.05)


def choose(browser: Browser, selector: str, value):
    name = "checked" if isinstance(value, bool) else "value"
    browser.run(f"""(() => {{
        const element = document.querySelector('{selector}');
        element.{name} = {json.dumps(value)};
        element.dispatchEvent(new Event('change', {{ bubbles: true }}));
    }})()""")
