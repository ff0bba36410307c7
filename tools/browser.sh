#!/usr/bin/env bash
# Is there a Chromium with its driver, and axe? If not: install Debian's (as root) and npm's, or say what to type.
#
# Only the tests of the dashboard need them; without they are skipped and say so.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source ./apt.sh
audits=../tests/browser/npm

there() {
  command -v chromium >/dev/null 2>&1 && command -v chromedriver >/dev/null 2>&1
}

if [ ! -e "$audits/node_modules/axe-core/axe.min.js" ]; then
  { command -v npm >/dev/null 2>&1 && (cd "$audits" && npm ci --omit=dev --silent --no-audit --no-fund >&2); } ||
    echo "The dashboard's pages are not looked at by axe: that needs npm, and what $audits/package.json names." >&2
fi
there && exit 0
if on_debian && apt_install chromium && apt_install chromium-driver && apt_install fonts-dejavu-core && there; then
  exit 0
fi
echo "The dashboard's tests need Chromium and its driver, and are skipped without. Type:" >&2
echo "    sudo apt-get install -y chromium chromium-driver" >&2
