#!/bin/bash
# Installs esptool from PyPI into .build/esptool, once; test_clients_connect.py runs it. Needs the network and python3-venv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
version=5.6.0
kept=$PWD/.build/esptool
[ "$(cat "$kept/version" 2>/dev/null)" != "$version" ] || exit 0
rm -rf "$kept"
mkdir -p "$kept"
/usr/bin/python3 -m venv "$kept/venv"
"$kept/venv/bin/pip" install -q --disable-pip-version-check "esptool==$version"
echo "$version" >"$kept/version"
