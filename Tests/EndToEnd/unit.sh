#!/bin/bash
# Deploy/baudway.service under a real systemd: boots a Debian in systemd-nspawn (nspawn.sh), installs the gateway there as
# Deploy/README.md says, and runs unit_inside.py in it. Also the tests that need no boot: verify, score.
#   BAUDWAY=file           the gateway under test (default: Deploy/build's)
#   UNIT_DEBIAN=trixie     another release of Debian than bookworm: one with a newer systemd
# Needs root; exit code 0 with "skipped" without it, or if nspawn cannot boot at all; never when CI is set.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 70
. Deploy/packages.sh
. Tests/EndToEnd/containers.sh
. Tests/EndToEnd/nspawn.sh

debian_root "The unit"
[ -n "${BAUDWAY:-}" ] || BAUDWAY=$(Deploy/build) || exit 1
# The source of the installation, with a Deploy/build that only prints the finished binary.
mkdir "$shared/tree" && cp "$BAUDWAY" "$shared/baudway" && cp -r Deploy config.yaml "$shared/tree/" &&
  cp Tests/EndToEnd/unit_inside.py "$shared/" || exit 1
printf '#!/bin/sh\necho /shared/baudway\n' >"$shared/tree/Deploy/build"
boot unit_inside.py
