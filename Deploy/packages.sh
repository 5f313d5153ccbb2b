# shellcheck shell=bash
# What Deploy/run and Tests/run need from Debian, and from the Swift toolchain. Sourced by both; does nothing by itself.

# What a bare Swift toolchain needs to run and to link on Debian 12.
# shellcheck disable=SC2034  # used by the scripts that source this file
toolchain_packages=(
  binutils gcc libc6-dev libstdc++-12-dev git pkg-config
  libcurl4 libxml2 libsqlite3-0 libncurses6 tzdata ca-certificates
)
# What Baudway itself is linked with.
# shellcheck disable=SC2034
library_packages=(libyaml-dev libssl-dev zlib1g-dev libbluetooth-dev)
# What the page's terminal is made of, at build time: xterm.js. Without it a build has no terminal, and what is shipped must have it.
# shellcheck disable=SC2034
page_packages=(node-xterm)
# What makes a Debian package (Deploy/deb).
# shellcheck disable=SC2034
deb_packages=(debhelper dpkg-dev python3)

# What builds container images (Deploy/image).
# shellcheck disable=SC2034
image_packages=(podman netavark iptables uidmap slirp4netns fuse-overlayfs)

# Installs those of the named packages that are missing, as root or through sudo. Quiet when all is there; with neither
# right, prints the command that somebody has to run, and fails.
install_packages() {
  local missing=() package as_root=()
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "This is not a Debian system: if something is missing below, install the packages that correspond to: $*" >&2
    return 0
  fi
  for package; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0

  if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
      as_root=(sudo)
    else
      echo "Packages are missing, and installing them needs root. Run this and try again:" >&2
      echo "  apt-get update && apt-get install --no-install-recommends ${missing[*]}" >&2
      return 1
    fi
  fi
  echo "Installing ${missing[*]}" >&2
  # Another apt may be at work (unattended upgrades): wait for it rather than fail.
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300)
  local log
  log=$(mktemp)
  if ! { "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends "${missing[@]}"; } \
    >"$log" 2>&1 </dev/null; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    echo "apt-get could not install: ${missing[*]}" >&2
    return 1
  fi
  rm -f "$log"
}

# Says how to get a Swift toolchain where there is none, or one too old for Package.swift. Call it once before the
# packages are installed (no toolchain: nothing to install for) and once after (it does not start without some of them).
require_swift() { # require_swift present|works
  local advice="Baudway is built with Swift 6.2 or newer. Get it from https://www.swift.org/install/linux/
(Debian 12 is among the platforms there) and put its usr/bin on PATH. Without a toolchain,
  docker compose -f Deploy/compose.yaml up
builds and runs Baudway in containers."
  if ! command -v swift >/dev/null; then
    printf 'No Swift toolchain found on PATH.\n%s\n' "$advice" >&2
    return 1
  fi
  [ "$1" = works ] || return 0
  local told version
  if ! told=$(swift --version 2>&1); then
    printf '%s does not start:\n%s\n%s\n' "$(command -v swift)" "$told" "$advice" >&2
    return 1
  fi
  version=$(sed -n 's/.*Swift version \([0-9]*\.[0-9]*\).*/\1/p' <<<"$told" | head -n 1)
  if [ -z "$version" ] || [ "$(printf '6.2\n%s\n' "$version" | sort -V | head -n 1)" != 6.2 ]; then
    printf '%s is Swift %s.\n%s\n' "$(command -v swift)" "${version:-(unknown version)}" "$advice" >&2
    return 1
  fi
}
