#!/usr/bin/env bash
# Build the TypeScript client: types from this tree's OpenAPI document, packages as the lock says, then the compiler.
#
#   tools/typescript-client.sh [FOLDER]    FOLDER: a copy of clients/typescript to build in (default: that folder itself)
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=${1:-$root/clients/typescript}
python=$root/.venv/bin/python
[ -x "$python" ] || python=python3

command -v npm >/dev/null 2>&1 || { echo "npm is missing: install Node.js 18 or later" >&2; exit 1; }
PYTHONPATH=$root/src "$python" -c '
import sys
from tarry import __version__
from tarry.doors.http.openapi import build_document
sys.stdout.buffer.write(build_document(__version__, is_open=False))
' >"$folder/openapi.json"
cd "$folder"
npm ci --silent --no-audit --no-fund
npm run --silent generate >&2
npm run --silent build
