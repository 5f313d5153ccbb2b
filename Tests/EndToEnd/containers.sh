# shellcheck shell=bash
# podman for image.sh and bare.sh, on any machine that can run it at all: its own settings and storage, and the two base
# images of the Dockerfile, pulled or made. Sourced; sets `cache`, `build_mounts` and `most_files`.
cache=${IMAGE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/baudway-image}
# shellcheck disable=SC2034  # used by the scripts that source this
container_packages=(podman buildah runc catatonit netavark aardvark-dns iptables mmdebstrap netcat-openbsd)
build_mounts=()
debian=docker.io/library/debian:bookworm-slim
swift=docker.io/library/swift:6.3-bookworm

# put NAME: writes a file of the cache atomically, because another script may be reading it.
put() { cat >"$cache/.$1.$$" && mv -f "$cache/.$1.$$" "$cache/$1"; }

# runc and cgroupfs, because crun and systemd's cgroup driver do not work everywhere (hybrid cgroups, no systemd).
# Limits are no higher than this process's own, because raising them needs a capability that a container's root may
# lack.
container_settings() {
  most_files=$(ulimit -Hn)
  [ "$most_files" = unlimited ] && most_files=1048576
  mkdir -p "$cache/tmp" || return 1
  put containers.conf <<CONF
[containers]
default_ulimits = ["nofile=$most_files:$most_files", "nproc=16384:16384"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
tmp_dir = "$cache/tmp"
[network]
network_backend = "netavark"
CONF
  put storage.conf <<CONF
[storage]
driver = "overlay"
graphroot = "$cache/storage"
runroot = "$cache/run"
CONF
  export CONTAINERS_CONF=$cache/containers.conf CONTAINERS_STORAGE_CONF=$cache/storage.conf
  # buildah's own temporary files are as big as the layers.
  export TMPDIR=$cache/tmp
}

# The base images: present, pulled, or made here. Stand-ins have the package lists of the real ones.
bases() {
  debian_base && swift_base || return 1
  if [ "$(podman image inspect -f '{{index .Labels "stand-in"}}' "$swift")" = thin ]; then toolchain_mounts; fi
  package_mounts
}

# image.sh and bare.sh may run in parallel.
debian_base() (
  exec 8>"$cache/lock" && flock -w 600 8 || exit
  podman image exists "$debian" && exit
  timeout 120 podman pull -q "$debian" >/dev/null 2>&1 && exit
  echo "$debian cannot be pulled: making a stand-in"
  debian_stand_in
)
swift_base() {
  podman image exists "$swift" && return
  timeout 900 podman pull -q "$swift" >/dev/null 2>&1 && return
  echo "$swift cannot be pulled: making a stand-in"
  swift_stand_in
}

# The mirror that this machine's apt uses for a release, or Debian's.
mirror() {
  local found
  # shellcheck disable=SC2016  # apt's placeholders, not the shell's
  found=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' 2>/dev/null |
    awk -v release="$1" '$2 == release { print $1; exit }')
  echo "${found:-$2}"
}

# Debian's slim image is minbase without documentation, with an apt that keeps no files. `foreign` is another architecture.
debian_stand_in() {
  local tree=$cache/slim status
  rm -rf "$tree" && mkdir -p "$tree/etc/apt/apt.conf.d" "$tree/usr/sbin"
  printf '#!/bin/sh\nexit 101\n' >"$tree/usr/sbin/policy-rc.d" && chmod 755 "$tree/usr/sbin/policy-rc.d"
  cat >"$tree/etc/apt/apt.conf.d/docker-clean" <<'CONF'
DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/archives/partial/*.deb /var/cache/apt/*.bin || true"; };
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
Acquire::GzipIndexes "true";
Acquire::Languages "none";
CONF
  # shellcheck disable=SC2016  # mmdebstrap expands the variables in its hooks.
  # The hook keeps mmdebstrap from installing usrmerge, and with it perl.
  mmdebstrap --quiet --variant=minbase ${foreign:+--arch="$foreign"} --hook-dir=/usr/share/mmdebstrap/hooks/maybe-merged-usr \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/info/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --customize-hook="copy-in $tree/usr $tree/etc /" \
    --customize-hook='rm -f "$1/etc/resolv.conf" "$1/etc/hostname" "$1"/var/cache/apt/*.bin' \
    bookworm "$cache/slim.tar" \
    "deb $(mirror bookworm http://deb.debian.org/debian) bookworm main" \
    "deb $(mirror bookworm-security http://deb.debian.org/debian-security) bookworm-security main" \
    >"$cache/slim.log" 2>&1 &&
    podman import -q ${foreign:+--arch "$foreign"} --change 'CMD ["bash"]' \
      --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
      "$cache/slim.tar" "$debian" >>"$cache/slim.log" 2>&1
  status=$?
  [ $status -eq 0 ] || tail -n 20 "$cache/slim.log"
  rm -rf "$tree" "$cache/slim.tar"
  return $status
}

# Swift's image is Debian, these packages and the toolchain. The toolchain (some GB) stays where it is on this machine
# and is mounted for the build; the image contains links to it.
swift_stand_in() {
  mkdir -p "$cache/empty"
  cat >"$cache/swift.Dockerfile" <<DOCKERFILE
FROM $debian
RUN apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y binutils libicu-dev libcurl4-openssl-dev \
    libedit-dev libsqlite3-dev libncurses-dev libpython3-dev libxml2-dev pkg-config uuid-dev tzdata git gcc libstdc++-12-dev \
 && rm -rf /var/lib/apt/lists/*
RUN for tool in $(toolchain)/usr/bin/*; do ln -s "\$tool" /usr/bin/ 2>/dev/null || true; done
LABEL stand-in=thin
DOCKERFILE
  if ! podman build -q --pull=never --network host -v "$(toolchain):$(toolchain):ro" -t "$swift" \
    -f "$cache/swift.Dockerfile" "$cache/empty" >"$cache/swift.log" 2>&1; then
    tail -n 20 "$cache/swift.log"
    return 1
  fi
}

# The folder that holds this machine's toolchain: above the usr/bin where `swift` really is.
toolchain() { realpath "$(dirname "$(readlink -f "$(command -v swift)")")/../.."; }
toolchain_mounts() { build_mounts+=(-v "$(toolchain):$(toolchain):ro"); }

# If git is configured to find packages in a local folder (url.FOLDER.insteadOf), the build gets the same configuration.
package_mounts() {
  local key prefix folder
  local settings=$cache/.packages.$$ mounted=' '
  printf '[safe]\n\tdirectory = *\n' >"$settings"
  while read -r key prefix; do
    folder=${key#url.}
    folder=${folder%.insteadof}
    local path=${folder#file://}
    [ -d "$path" ] || continue
    git config -f "$settings" --add "url.$folder.insteadOf" "$prefix"
    [[ $mounted == *" $path "* ]] || build_mounts+=(-v "${path%/}:${path%/}:ro")
    mounted+="$path "
  done < <(git config --get-regexp '^url\..*\.insteadof$')
  put gitconfig <"$settings" && rm -f "$settings"
  [ "$mounted" = ' ' ] || build_mounts+=(-v "$cache/gitconfig:/etc/gitconfig:ro")
}
