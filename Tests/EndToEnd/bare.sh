#!/bin/bash
# Deploy/run the way a stranger meets it: a bare Debian 12 with this machine's Swift toolchain on PATH and nothing else.
# Without a toolchain and without root it must say what to do; with both it must install, build, and serve the shipped
# config.yaml. In a container with image.sh's settings and base image.
# shellcheck disable=SC2317  # functions are called through `check`
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 70
. Deploy/packages.sh
. Tests/EndToEnd/containers.sh

name=baudway-bare-$$ failed=0
work=$(mktemp -d)
trap 'podman rm -f -t 1 "$name" >/dev/null 2>&1; rm -rf "$work"' EXIT
pass() { echo "ok: $*"; }
check() {
  local text=$1
  shift
  if "$@" >"$work/log" 2>&1; then pass "$text"; else echo "FAIL: $text"; tail -n 25 "$work/log"; failed=1; return 1; fi
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
mkdir "$work/baudway"
git ls-files -co --exclude-standard -z | tar -c --null -T - --ignore-failed-read 2>/dev/null | tar -x -C "$work/baudway"

# Its build gets what others do not want: image.sh may run beside it. Without root the kernel may not let us say so.
weight=()
[ "$(id -u)" -ne 0 ] || weight=(--cpu-shares 2)
podman run -d --name "$name" "${weight[@]}" "${build_mounts[@]}" -v "$work/baudway:/baudway" -w /baudway "$debian" sleep infinity >/dev/null || exit 1
inside() { podman exec "$@"; }
with_swift=(-e "PATH=/usr/sbin:/usr/bin:/sbin:/bin:$(toolchain)/usr/bin")

# refuses WORDS COMMAND...: it fails, and says WORDS.
refuses() {
  local words=$1 told
  shift
  told=$(inside "$@" 2>&1) && { echo "did not fail: $told"; return 1; }
  grep -F "$words" <<<"$told" || { echo "$told"; return 1; }
}
check "without a toolchain it says how to get one" refuses 'https://www.swift.org/install/linux' "$name" ./Deploy/run
check "without root it prints the apt command" \
  refuses 'apt-get install --no-install-recommends binutils' --user 1000 "${with_swift[@]}" "$name" ./Deploy/run

answers() { inside "$name" bash -c 'exec 3<>/dev/tcp/127.0.0.1/4001 && timeout 5 head -n 1 <&3 | grep -a ^.G' 2>/dev/null; }
serves() {
  inside -d "${with_swift[@]}" "$name" sh -c './Deploy/run >/run.log 2>&1; echo "ended: $?" >>/run.log'
  local end=$((SECONDS + 900))
  until answers; do
    if [ "$SECONDS" -ge "$end" ] || inside "$name" grep -q '^ended: ' /run.log; then
      inside "$name" tail -n 25 /run.log
      return 1
    fi
    sleep 1
  done
}
start=$SECONDS
check "it installs, builds, and the shipped gps route answers" serves && echo "after $((SECONDS - start)) s"
exit $failed
