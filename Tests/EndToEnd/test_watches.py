"""What the gateway watches by inotify(7): with one instance for many ports, and by looking where the kernel refuses."""
import fcntl
import os
import subprocess

import pytest

from certificates import Authority
from kit import Gateway, Pty, binary, open_files, round_trip
from listener_clients import connect_tls, trusting


def refusing(limit):
    """A prefix: a user namespace whose processes get nothing of `limit`. The kernel counts them for each namespace."""
    script = f'echo 0 > /proc/sys/user/{limit} && exec "$@"'
    return ["unshare", "--user", "--map-root-user", "sh", "-c", script, "sh"]


def may_refuse():
    return subprocess.run([*refusing("max_inotify_watches"), "true"], capture_output=True).returncode == 0


def instances(gateway):
    return list(open_files(gateway.pid).values()).count("anon_inode:inotify")


def test_many_absent_and_busy_ports_and_ptys_need_one_instance_for_each_lane(tmp_path):
    with Pty() as busy:
        holder = os.open(busy.path, os.O_RDWR | os.O_NOCTTY)
        fcntl.flock(holder, fcntl.LOCK_EX)
        routes = {f"r{n}": {"listen": "tcp://127.0.0.1:0", "endpoint": f"tty://{tmp_path}/p{n}", "device": {"open": "always"}}
                  for n in range(40)}
        routes["busy"] = {"listen": f"pty://{tmp_path}/port", "endpoint": f"tty://{busy.path}", "device": {"open": "always"}}
        with Gateway({"routes": routes}) as gateway:
            for n in range(40):
                gateway.event("link waiting", route=f"r{n}")
            gateway.event("link waiting", route="busy")
            assert 1 <= instances(gateway) <= 6  # four lanes for bytes, and two more
            with Pty() as late:
                os.symlink(late.path, tmp_path / "p39")
                gateway.event("link open", route="r39")
                os.close(holder)
                gateway.event("link open", route="busy")
            assert not gateway.events("files not watched")


@pytest.mark.skipif(not may_refuse(), reason="no user namespaces here")
@pytest.mark.waits
@pytest.mark.parametrize("limit, named", [
    ("max_inotify_instances", "fs.inotify.max_user_instances"), ("max_inotify_watches", "fs.inotify.max_user_watches")])
def test_where_the_kernel_refuses_everything_is_looked_at_each_second_and_one_line_says_so(tmp_path, limit, named):
    authority = Authority(tmp_path)
    server, ada = authority.issue("gw.test", "gw.test", "127.0.0.1"), authority.issue("ada")
    crl = tmp_path / "lists.pem"
    crl.write_bytes(authority.revocations().read_bytes())
    tls = {"certificate": str(server.certificate), "key": str(server.key), "client-ca": str(authority.certificate), "crl": str(crl)}
    config = {"routes": {
        "port": {"listen": "tcp://127.0.0.1:0", "endpoint": f"tty://{tmp_path}/late", "device": {"open": "always", "retry": "300s..600s"}},
        "made": {"listen": f"pty://{tmp_path}/made", "endpoint": "sim://echo"},
        "tls": {"listen": "tls://127.0.0.1:0", "endpoint": "sim://echo", "tls": tls},
    }}
    with Gateway(config, prefix=refusing(limit)) as gateway:
        gateway.event("link waiting", route="port")
        line = gateway.event("files not watched")
        assert named in line["error"] and "every 1s" in line["looks"], line
        client = connect_tls(gateway.address("tls"), trusting(authority, ada))
        round_trip(client)
        with Pty() as device:
            os.symlink(device.path, tmp_path / "late")
            gateway.event("link open", seconds=60, route="port")
            program = os.open(tmp_path / "made", os.O_RDWR | os.O_NOCTTY)
            os.write(program, b"hello")
            assert os.read(program, 5) == b"hello"
            os.close(program)
            authority.revoke(ada)
            crl.write_bytes(authority.revocations().read_bytes())
            ended = gateway.event("session ended", seconds=60, route="tls")
            assert ended["reason"] == "denied" and "is revoked" in ended["error"]
        assert len(gateway.events("files not watched")) == 1
        assert not gateway.events("file not watched")


@pytest.mark.skipif(not may_refuse(), reason="no user namespaces here")
def test_where_the_kernel_refuses_a_changed_configuration_is_seen_all_the_same():
    config = {"routes": {"one": {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo"}}}
    gateway = Gateway(config)
    gateway.process = subprocess.Popen(
        [*refusing("max_inotify_instances"), binary(), "serve", "--watch", str(gateway.path)], stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE, env=gateway.environment)
    gateway.follow(gateway.process.stderr)
    try:
        gateway.event("listening", route="one")
        gateway.event("files not watched")
        gateway.configure({"routes": {**config["routes"], "two": {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo"}}})
        gateway.event("listening", seconds=60, route="two")
        gateway.stop()
    finally:
        gateway.process.kill()
        gateway.process.wait()
        gateway._folder.cleanup()
