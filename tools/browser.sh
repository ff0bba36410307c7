#!/usr/bin/env bash
# Is there a Chromium with its driver? If not: install Debian's (as root), or say what to type.
#
# Only the tests of the dashboard need it; without one they are skipped and say so.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source ./apt.sh

there() {
  command -v chromium >/dev/null 2>&1 && command -v chromedriver >/dev/null 2>&1
}

there && exit 0
if on_debian && apt_install chromium && apt_install chromium-driver && apt_install fonts-dejavu-core && there; then
  exit 0
fi
echo "The dashboard's tests need Chromium and its driver, and are skipped without. Type:" >&2
echo "    sudo apt-get install -y chromium chromium-driver" >&2
