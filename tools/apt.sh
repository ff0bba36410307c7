# Sourced by the set-up scripts: install a Debian package if we may, or say how.
# shellcheck shell=bash

# on_debian: whether there is an apt-get that we, as root, can use.
on_debian() {
  [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1
}

# apt_install PACKAGE: install it and keep quiet unless that fails.
# The package lists are fetched only when the first try finds them missing or out of date.
apt_install() {
  local package=$1 log
  log=$(mktemp)
  export DEBIAN_FRONTEND=noninteractive
  echo "Installing Debian's $package ..." >&2
  if ! apt-get install -y -q --no-install-recommends "$package" >"$log" 2>&1 &&
    ! { apt-get update -q && apt-get install -y -q --no-install-recommends "$package"; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    return 1
  fi
  rm -f "$log"
}
