"""A client that vanishes without a FIN: its slot and its descriptor are free within 30 s, idle, in mid-download or in a
queue.

Gateway and client each have a network namespace. To vanish, each side gets a wrong hardware address of the other: from
then on every packet is silently dropped, both ways, as when a cable is cut behind a switch.
"""
import os
import subprocess
import time

import pytest
from kit import GUARD, Gateway, run_all, until

GATEWAY, CLIENT = "192.0.2.1", "192.0.2.2"  # RFC 5737, TEST-NET-1
LIMIT = 30

# Runs in the client's namespace: connects, executes the lines it reads, and prints what it received so far.
PROGRAM = """
import socket, sys
s = socket.socket()
s.connect((sys.argv[1], int(sys.argv[2])))
print("connected", flush=True)
if sys.argv[3] == "download":
    total = 0
    while True:
        total += len(s.recv(65536))
        if total > 1000000:
            print("downloading", flush=True)
            total = -1 << 60
elif sys.argv[3] == "queue":
    print(s.recv(100).decode().split()[-1], flush=True)
    s.recv(1)
else:
    s.sendall(b"?")
    s.recv(1)
    print("idle", flush=True)
    s.recv(1)
"""


def ip(*words: str):
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def hosts():
    """Two namespaces with a cable between them, and a way to cut it."""
    tag = os.getpid() % 100000
    here, there = f"bw{tag}g", f"bw{tag}c"
    try:
        for name in (here, there):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", here, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", there)
        for name, address in ((here, GATEWAY), (there, CLIENT)):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
            ip("-n", name, "link", "set", "cable", "up")

        def cut():
            for name, other in ((here, CLIENT), (there, GATEWAY)):
                ip("-n", name, "neigh", "replace", other, "lladdr", "02:00:00:00:00:99", "dev", "cable", "nud", "permanent")

        yield here, there, cut
    finally:
        for name in (here, there):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


@pytest.mark.waits
@pytest.mark.root("makes hosts: namespaces of the network")
def test_slot_and_descriptor_of_a_vanished_client_are_free(hosts, figure):
    """All kinds at once, each on its own route, so that one wait is enough for all."""
    here, there, cut = hosts
    config = {"routes": {
        "idle": {"listen": f"tcp://{GATEWAY}:0", "endpoint": "sim://echo", "clients": {"max": 1}},
        "download": {"listen": f"tcp://{GATEWAY}:0", "endpoint": "sim://flood", "clients": {"max": 1, "slow": "block"}},
        "queue": {
            "listen": f"tcp://{GATEWAY}:0", "endpoint": "sim://echo", "clients": {"max": 1, "when-full": "queue"}},
    }}
    clients = []
    with Gateway(config, prefix=["nsenter", f"--net=/run/netns/{here}"]) as gateway:
        try:
            def start_client(namespace, route, mode):
                client = subprocess.Popen(
                    ["nsenter", f"--net=/run/netns/{namespace}", "/usr/bin/python3", "-c", PROGRAM, GATEWAY,
                     str(gateway.address(route)[1]), mode], stdout=subprocess.PIPE, text=True)
                clients.append(client)
                assert client.stdout.readline() == "connected\n"
                assert client.stdout.readline() == {"idle": "idle\n", "download": "downloading\n", "queue": "queue\n"}[mode]

            start_client(here, "queue", "idle")  # has the slot, and stays
            before = gateway.descriptors()
            for route in config["routes"]:
                start_client(there, route, route)
            cut()
            start = time.monotonic()

            def gone(route):
                def body():
                    ended = gateway.event("session ended", route=route, seconds=LIMIT + GUARD)
                    return ended, time.monotonic() - start
                return body

            for route, (ended, seconds) in zip(config["routes"], run_all(*map(gone, config["routes"]), seconds=LIMIT + GUARD)):
                figure(f"vanished client, {route}", seconds, "s", aim=LIMIT)
                assert ended["reason"] == ("queue-left" if route == "queue" else "client-lost")
                assert seconds < LIMIT, f"{route}: {seconds:.1f} s"
            until(lambda: gateway.descriptors() <= before, what=f"descriptors back to {before}")
        finally:
            for client in clients:
                client.kill()
                client.wait()
                client.stdout.close()
