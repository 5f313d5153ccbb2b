"""What the programs that nspawn.sh boots share: reporting, and the properties of the service."""
import socket
import subprocess
import time


def run(*words, check=True, seconds=30, **more) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=seconds, **more)
    if check and done.returncode:
        raise AssertionError(f"{' '.join(words)}: exit {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def soon(seconds, condition, what=""):
    end = time.monotonic() + seconds
    while True:
        try:
            if answer := condition():
                return answer
            problem = "no"
        except (OSError, AssertionError, subprocess.TimeoutExpired) as error:
            problem = error
        assert time.monotonic() < end, f"not within {seconds} s: {what} ({problem})"
        time.sleep(0.05)


def check(text):
    """Decorates a function that is called at once; an exception is a failure, the result is shown."""
    def call(body):
        try:
            shown = body()
            print(f"ok: {text}" + (f" ({shown})" if shown else ""))
        except Exception as error:  # noqa: B902 - a check may fail in any way
            print(f"FAIL: {text}: {type(error).__name__}: {error}")
            print(run("systemctl", "status", "baudway", "--no-pager", "-n", "12", check=False))
    return call


def prop(name, unit="baudway") -> str:
    return run("systemctl", "show", "-P", name, unit).strip()


def is_active():
    return prop("ActiveState") == "active"


def pid() -> int:
    return int(prop("MainPID"))


def connect(port):
    client = socket.create_connection(("127.0.0.1", port), 5)
    client.settimeout(5)
    return client
