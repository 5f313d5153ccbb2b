#!/bin/bash
# Deploy/baudway.service under a real systemd: boots a Debian in systemd-nspawn, with a network of its own and nothing kept,
# installs the gateway there as Deploy/README.md says, and runs unit_inside.py in it. Also what needs no boot: verify, score.
#   BAUDWAY=file           the gateway under test (default: Deploy/build's)
#   UNIT_DEBIAN=trixie     another release of Debian than bookworm: one with a newer systemd
# The Debian lies in .build/unit-bookworm and is made once (a minute). Takes root; exit code 0 with "skipped" without it, or where
# nspawn cannot boot at all; never when CI is set.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 70
. Deploy/packages.sh
. Tests/EndToEnd/containers.sh

skip_or_fail() {
  if [ -n "${CI:-}" ]; then echo "FAIL: $1"; exit 1; fi
  printf '\n!!!!!! skipped: %s. The unit was NOT tried. !!!!!!\n\n' "$1"
  exit 0
}
[ "$(id -u)" -eq 0 ] || skip_or_fail "systemd-nspawn takes root"
install_packages systemd-container mmdebstrap || exit 1
[ -n "${BAUDWAY:-}" ] || BAUDWAY=$(Deploy/build) || exit 1

release=${UNIT_DEBIAN:-bookworm}
folder=$PWD/.build/unit-$release
root=$folder/root shared=$folder/shared
mkdir -p "$folder" || exit 1
# One at a time: two boots of one tree get in each other's way.
exec 9>"$folder/lock"
flock -w 300 9 || { echo "FAIL: another run holds $folder/lock"; exit 1; }

# Made anew when what it holds changes.
made="systemd-sysv dbus udev python3 iproute2 libyaml-0-2 libssl3 zlib1g libgcc-s1"
if [ "$(cat "$root/.made" 2>/dev/null)" != "$made" ]; then
  rm -rf --one-file-system "$root"
  start=$SECONDS
  hooks=()
  [ "$release" != bookworm ] || hooks=(--hook-dir=/usr/share/mmdebstrap/hooks/maybe-merged-usr)
  # shellcheck disable=SC2016  # mmdebstrap's variable, not ours
  timeout -k 5 600 mmdebstrap --quiet --variant=minbase "${hooks[@]}" --include="${made// /,}" \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --customize-hook='rm -rf "$1"/var/cache/apt/* "$1"/var/lib/apt/lists/*' \
    "$release" "$root" \
    "deb $(mirror bookworm http://deb.debian.org/debian) $release main" \
    "deb $(mirror bookworm-security http://deb.debian.org/debian-security) $release-security main" \
    >"$folder/mmdebstrap.log" 2>&1 || { tail -n 20 "$folder/mmdebstrap.log"; exit 1; }
  echo "$made" >"$root/.made"
  echo "made a Debian ($release) in $((SECONDS - start)) s"
fi

# What runs at the boot, and ends it.
cat >"$root/etc/systemd/system/baudway-test.service" <<'UNIT'
[Unit]
After=basic.target dbus.service
[Service]
Type=oneshot
ExecStart=/usr/bin/python3 -u /shared/unit_inside.py
ExecStopPost=/bin/systemctl poweroff --force
StandardOutput=append:/shared/log
StandardError=inherit
TimeoutStartSec=150
UNIT
mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
ln -sf ../baudway-test.service "$root/etc/systemd/system/multi-user.target.wants/"

# What is installed from, with a Deploy/build that has built already.
rm -rf "$shared" && mkdir -p "$shared/tree" || exit 1
cp "$BAUDWAY" "$shared/baudway" && cp -r Deploy config.yaml "$shared/tree/" && cp Tests/EndToEnd/unit_inside.py "$shared/" || exit 1
printf '#!/bin/sh\necho /shared/baudway\n' >"$shared/tree/Deploy/build"

# A full boot takes half a second. --volatile: what is written is gone at the end. The legacy hierarchies of some hosts are no use to it.
SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 timeout -k 5 180 systemd-nspawn -q --register=no --keep-unit --volatile=overlay \
  --private-network -D "$root" --bind="$shared:/shared" --console=pipe /sbin/init \
  </dev/null >"$folder/nspawn.log" 2>&1 9>&-
if [ ! -s "$shared/log" ]; then
  tail -n 20 "$folder/nspawn.log"
  skip_or_fail "systemd-nspawn does not boot here"
fi
cat "$shared/log"
grep -q '^done$' "$shared/log" || { echo "FAIL: it did not come to its end"; exit 1; }
! grep -q '^FAIL' "$shared/log"
