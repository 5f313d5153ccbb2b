# shellcheck shell=bash
# A Debian that boots in systemd-nspawn, with its own network and nothing kept, for unit.sh and Tests/Package/run. Sourced after
# containers.sh, at the top of the tree; sets `shared`, the folder that is /shared in it.
#   UNIT_DEBIAN=trixie     another release of Debian than bookworm: one with a newer systemd
# The Debian is in .build/unit-bookworm and is made once (a minute).
release=${UNIT_DEBIAN:-bookworm}
folder=$PWD/.build/unit-$release
root=$folder/root shared=$folder/shared

skip_or_fail() {
  if [ -n "${CI:-}" ]; then echo "FAIL: $1"; exit 1; fi
  printf '\n!!!!!! skipped: %s. %s was NOT tried. !!!!!!\n\n' "$1" "$subject"
  exit 0
}

# debian_root SUBJECT: what is tested, for the message if it cannot be. Leaves an empty folder `shared`.
debian_root() {
  subject=$1
  [ "$(id -u)" -eq 0 ] || skip_or_fail "systemd-nspawn takes root"
  install_packages systemd-container mmdebstrap || exit 1
  mkdir -p "$folder" || exit 1
  # One at a time: two boots of one tree disturb each other.
  exec 9>"$folder/lock"
  flock -w 300 9 || { echo "FAIL: another run holds $folder/lock"; exit 1; }

  # Made anew when its list of packages changes.
  local made="systemd-sysv dbus udev python3 iproute2 libyaml-0-2 libssl3 zlib1g libgcc-s1"
  if [ "$(cat "$root/.made" 2>/dev/null)" != "$made" ]; then
    rm -rf --one-file-system "$root"
    local start=$SECONDS hooks=()
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
  rm -rf "$shared" && mkdir -p "$shared" || exit 1
}

# boot PROGRAM: boots it, runs /shared/PROGRAM (Python) as root, which prints `ok: …` or `FAIL: …` for each check and at the end
# `done`, and powers it off. Prints what that printed. booted.py is beside the program.
boot() {
  cp Tests/EndToEnd/booted.py "$shared/" || exit 1
  cat >"$root/etc/systemd/system/baudway-test.service" <<UNIT
[Unit]
After=basic.target dbus.service
[Service]
Type=oneshot
ExecStart=/usr/bin/python3 -u /shared/$1
ExecStopPost=/bin/systemctl poweroff --force
StandardOutput=append:/shared/log
StandardError=inherit
TimeoutStartSec=150
UNIT
  mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
  ln -sf ../baudway-test.service "$root/etc/systemd/system/multi-user.target.wants/"

  # A full boot takes half a second. --volatile: everything written is gone at the end. Without the legacy cgroup
  # hierarchies of some hosts, which systemd here cannot use.
  SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 timeout -k 5 180 systemd-nspawn -q --register=no --keep-unit --volatile=overlay \
    --private-network -D "$root" --bind="$shared:/shared" --console=pipe /sbin/init \
    </dev/null >"$folder/nspawn.log" 2>&1 9>&-
  if [ ! -s "$shared/log" ]; then
    tail -n 20 "$folder/nspawn.log"
    skip_or_fail "systemd-nspawn does not boot here"
  fi
  cat "$shared/log"
  grep -q '^done$' "$shared/log" || { echo "FAIL: it did not come to its end"; return 1; }
  ! grep -q '^FAIL' "$shared/log"
}
