#!/usr/bin/env bash
# Build versitygw, an S3 server over a folder, with Go into .cache/versitygw for the tests, and print its path.
#
# The second time costs nothing. Exit code 1 with a line on standard error where Go is missing or it cannot be fetched.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VERSION=v1.8.0
FOLDER=$PWD/.cache/versitygw/$VERSION

if [ ! -x "$FOLDER/versitygw" ]; then
  command -v go >/dev/null || { echo "versitygw needs Go, which is not here" >&2; exit 1; }
  mkdir -p "$FOLDER"
  built=$(mktemp -d)
  trap 'rm -rf "$built"' EXIT
  if ! GOBIN=$built GOFLAGS=-trimpath go install "github.com/versity/versitygw/cmd/versitygw@$VERSION" >"$built/log" 2>&1; then
    echo "versitygw cannot be built: $(grep -v '^go: downloading' "$built/log" | tail -n 1)" >&2
    exit 1
  fi
  mv "$built/versitygw" "$FOLDER/versitygw"
fi
echo "$FOLDER/versitygw"
