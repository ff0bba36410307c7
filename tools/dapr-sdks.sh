#!/usr/bin/env bash
# What the tests of the Dapr door need beside the locks: dapr-sdks.sh python | javascript
#
# python: what Dapr's own extensions for applications (gRPC, FastAPI) import; javascript: its SDK. Both go into .cache, once.
# Exit code 1 with a line on standard error where they cannot be had.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# once FOLDER COMMAND...: run a command that fills a folder, unless it was filled by the same command before.
once() {
  local folder=$1 wanted
  shift
  wanted=$(printf '%s\n' "$@" | sha256sum)
  [ "$(cat "$folder/.filled" 2>/dev/null)" = "$wanted" ] && return 0
  rm -rf "$folder"
  mkdir -p "$folder"
  "$@" >"$folder/.log" 2>&1 || { echo "cannot be installed here: $* ($(tail -n 1 "$folder/.log"))" >&2; return 1; }
  printf '%s' "$wanted" >"$folder/.filled"
}

case ${1:-} in
python)
  once .cache/dapr-sdk "${PYTHON:-python3}" -m pip install --quiet --disable-pip-version-check \
    --target .cache/dapr-sdk cloudevents==1.13.0 fastapi==0.162.4
  ;;
javascript)
  command -v node >/dev/null && command -v npm >/dev/null || { echo 'Node.js and npm are not installed' >&2; exit 1; }
  [ "$(node -p 'process.versions.node.split(".")[0]')" -ge 18 ] || { echo 'Node.js is older than 18' >&2; exit 1; }
  once .cache/dapr-js npm install --prefix .cache/dapr-js --no-save --package-lock=false --no-audit --no-fund \
    --loglevel=error @dapr/dapr@3.18.0
  ;;
*)
  echo 'say which: python or javascript' >&2
  exit 2
  ;;
esac
