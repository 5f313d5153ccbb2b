"""Runs a program in its own terminal, in the machine: terminal.py PROGRAM WORDS…

Its output goes to standard output, with a line RAW when it has made the terminal raw. At its end a line reports whether
the terminal's settings are restored; the exit code is the program's, or 128 plus the number of the signal that ended
it.
"""
import fcntl
import os
import select
import signal
import sys
import termios


def main() -> int:
    user, terminal = os.openpty()
    before = termios.tcgetattr(terminal)
    child = os.fork()
    if child == 0:
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
        for number in range(3):
            os.dup2(terminal, number)
        os.close(user)
        os.execv(sys.argv[1], sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    was_raw = False
    ended = 0
    while not ended:
        ended, status = os.waitpid(child, os.WNOHANG)
        show(user)
        is_raw = not termios.tcgetattr(terminal)[3] & termios.ICANON
        if is_raw and not was_raw:
            print("RAW", flush=True)
        was_raw = is_raw
    while show(user):
        pass
    print("as before" if termios.tcgetattr(terminal) == before else "not as before", flush=True)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def show(user: int) -> bool:
    if not select.select([user], [], [], 0.1)[0]:
        return False
    sys.stdout.buffer.write(os.read(user, 65536))
    sys.stdout.flush()
    return True


sys.exit(main())
