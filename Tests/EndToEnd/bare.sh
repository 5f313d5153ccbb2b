#!/bin/bash
# Deploy/run as a new user sees it: a bare Debian 12 with this machine's Swift toolchain on PATH and nothing else.
# Without a toolchain, and without root and sudo, it must say what to do. As an ordinary user with sudo, and as root, it
# must install, build, and serve the shipped config.yaml. Runs in two containers, one for each user, with image.sh's
# settings and base image.
#   --tests   then also `Tests/run` there, as both; half an hour on two processors. Names the skipped tests.
# shellcheck disable=SC2317  # functions are called through `check`
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 70
. Deploy/packages.sh
. Tests/EndToEnd/containers.sh

tests=''
case ${1:-} in
  '') ;;
  --tests) tests=1 ;;
  *) sed -n '2,/^#   --/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 64 ;;
esac

name=baudway-bare-$$ failed=0
work=$(mktemp -d)
cleanup() {
  podman exec "$name-user" chown -R 0:0 /baudway >/dev/null 2>&1 # podman's other users are not this one's, who may not remove what is theirs
  # --ignore: without it, a container that does not exist (any more) prevents the removal of the other.
  podman rm -f --ignore -t 1 "$name-user" "$name-root" >/dev/null 2>&1
  rm -rf "$work"
}
trap cleanup EXIT
pass() { echo "ok: $*"; }
# check TEXT COMMAND...: prints how long it took; its output only if it failed.
check() {
  local text=$1 start=$SECONDS
  shift
  if "$@" >"$work/log" 2>&1; then pass "$text, $((SECONDS - start)) s"; else echo "FAIL: $text"; tail -n 25 "$work/log"; failed=1; return 1; fi
}

install_packages "${container_packages[@]}" || exit 1
container_settings || exit 1
podman info >"$work/log" 2>&1 || {
  tail -n 5 "$work/log"
  [ -z "${CI:-}" ] || exit 1
  echo "skipped: podman does not work here"
  exit 0
}
debian_base || exit 1
build_mounts=()
toolchain_mounts
package_mounts

copy_to() { # copy_to FOLDER: a checkout of what git would commit
  mkdir "$1" &&
    git ls-files -co --exclude-standard -z | tar -c --null -T - --ignore-failed-read 2>/dev/null | tar -x -C "$1" &&
    git init -q "$1"
}

settings=(--init)
if [ -n "$tests" ]; then
  # Things a machine has but a container normally does not: kernel settings (/proc/sys), namespaces, mounts, process
  # groups, and half of its memory for /dev/shm. Nothing else runs in parallel.
  settings+=(--privileged --shm-size 1g)
fi
debian_begins() { # debian_begins NAME FOLDER: starts a bare Debian, with FOLDER as its /baudway
  podman run -d --name "$1" "${settings[@]}" "${build_mounts[@]}" -v "$2:/baudway" -w /baudway "$debian" sleep infinity >/dev/null || exit 1
}
in_root() { podman exec -e "PATH=/usr/sbin:/usr/bin:/sbin:/bin:$(toolchain)/usr/bin" "$name-root" "$@"; }
# PATH is that of Debian's users, without sbin.
in_user() {
  podman exec --user somebody -e HOME=/home/somebody -e USER=somebody -e LOGNAME=somebody \
    -e "PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games:$(toolchain)/usr/bin" "$name-user" "$@"
}

# refuses WORDS COMMAND...: the command must fail and print WORDS.
refuses() {
  local words=$1 told
  shift
  told=$("$@" 2>&1) && { echo "did not fail: $told"; return 1; }
  grep -F "$words" <<<"$told" || { echo "$told"; return 1; }
}
# shellcheck disable=SC2016  # for the shell inside
answers() { # answers in_user|in_root: the shipped gps and echo routes
  "$1" bash -c 'exec 3<>/dev/tcp/127.0.0.1/4001 4<>/dev/tcp/127.0.0.1/4002 && timeout 5 head -n 1 <&3 | grep -a ^.G &&
    echo hello >&4 && timeout 5 head -n 1 <&4 | grep -x hello' 2>/dev/null
}
serves() { # serves in_user|in_root: from Deploy/run to its end by SIGTERM
  local end=$((SECONDS + 1800)) status=0
  # shellcheck disable=SC2016
  "$1" sh -c './Deploy/run >/tmp/run.log 2>&1 & echo $! >/tmp/run.pid; wait $!; echo "ended: $?" >>/tmp/run.log' &
  until answers "$1"; do
    if [ "$SECONDS" -ge "$end" ] || "$1" grep -q '^ended: ' /tmp/run.log; then status=1; break; fi
    sleep 1
  done
  # shellcheck disable=SC2016
  "$1" sh -c 'kill $(cat /tmp/run.pid)'
  wait $!
  "$1" tail -n 25 /tmp/run.log
  [ "$status" -eq 0 ] && "$1" grep -qx 'ended: 0' /tmp/run.log
}
tests_pass() { # tests_pass in_user|in_root WORDS: all that WORDS names must pass; then lists the skipped tests
  local start=$SECONDS log=$work/$1.log
  printf '\n##### Tests/run %s\n' "$2"
  if "$1" timeout -k 10 7200 ./Tests/run 2>&1 | tee "$log"; then
    pass "Tests/run $2, $((SECONDS - start)) s"
  else
    echo "FAIL: Tests/run $2"
    failed=1
  fi
  echo "Skipped $2:"
  awk '/^=== / { step = substr($0, 5) } /^➜.* skipped|^skipped: / { print "  " step ": " $0; found = 1 } END { if (!found) print "  nothing" }' "$log"
}

copy_to "$work/baudway" || exit 1
debian_begins "$name-user" "$work/baudway"
check "without a toolchain it prints how to get one" refuses 'https://www.swift.org/install/linux' podman exec "$name-user" ./Deploy/run

prepared() {
  podman exec "$name-user" sh -c 'useradd --create-home --shell /bin/bash somebody && chown -R somebody: .'
}
sudo_comes() {
  podman exec -e DEBIAN_FRONTEND=noninteractive "$name-user" sh -c 'apt-get -qq update && apt-get -qq install -y --no-install-recommends sudo &&
    echo "somebody ALL=(ALL) NOPASSWD: ALL" >/etc/sudoers.d/somebody'
}
check "a user is created" prepared || exit 1
check "without root and sudo it prints the apt command" refuses 'apt-get install --no-install-recommends binutils' in_user ./Deploy/run
check "sudo is installed" sudo_comes || exit 1
check "as a user with sudo it installs, builds, and the shipped gps and echo routes answer" serves in_user
[ -z "$tests" ] || tests_pass in_user "as a user with sudo"
podman exec "$name-user" chown -R 0:0 /baudway
podman rm -f -t 1 "$name-user" >/dev/null 2>&1

# Root installs the same packages and builds the same, so that is not done twice, except for the tests, whose builds
# depend on more.
[ -z "$tests" ] || copy_to "$work/fresh" || exit 1
debian_begins "$name-root" "$work/$([ -n "$tests" ] && echo fresh || echo baudway)"
check "as root it installs, and the shipped gps and echo routes answer" serves in_root
[ -z "$tests" ] || tests_pass in_root "as root"
exit $failed
