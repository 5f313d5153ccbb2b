"""MicroPython's unix port as the device at the far end of a pty: its REPL is what a board's serial port has."""
import os
import subprocess

from kit import GUARD, Pty
from servers import PYTHON


class Board(Pty):
    """The interpreter has a second pty as its terminal; socat carries bytes between that and this port's far end."""

    def __init__(self, folder: str):
        super().__init__()
        program = "import sys, micropython_run; sys.exit(micropython_run.run_main(['micropython']))"
        self.process = subprocess.Popen(
            ["socat", f"FD:{self.master}", f'EXEC:"{PYTHON} -c \\"{program}\\"",pty,ctty,setsid,raw,echo=0'],
            pass_fds=(self.master,), cwd=folder, stdin=subprocess.DEVNULL, env={**os.environ, "TERM": "dumb"})

    def close(self):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(GUARD)
        super().close()
