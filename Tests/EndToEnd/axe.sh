#!/bin/bash
# Puts axe-core, which finds mistakes of accessibility, into .build/axe, once; test_status_page.py runs it in a browser. The package
# on PyPI that has the script is for Playwright, which is not installed. Needs the network and python3-venv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
version=0.1.8
kept=$PWD/.build/axe
[ "$(cat "$kept/version" 2>/dev/null)" != "$version" ] || exit 0
rm -rf "$kept"
mkdir -p "$kept"
/usr/bin/python3 -m venv "$kept/venv"
"$kept/venv/bin/pip" install -q --disable-pip-version-check --no-deps --target "$kept/package" "axe-playwright-python==$version"
find "$kept/package" -name axe.min.js -exec cp {} "$kept/axe.min.js" \; -quit
rm -rf "$kept/venv" "$kept/package"
[ -s "$kept/axe.min.js" ]
echo "$version" >"$kept/version"
