# Sourced by the set-up scripts: install Debian packages if we may, or say how.
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

# apt_install_unstarted PACKAGE...: install those that are missing. One that is there already costs nothing.
# Debian starts a service when it is installed; here that is forbidden meanwhile. Fails with a line where one cannot be had.
apt_install_unstarted() (
  missing=() policy=/usr/sbin/policy-rc.d # Debian asks it whether a service may be started
  for package in "$@"; do
    # Not by its program: RabbitMQ's lies outside the usual path of a user.
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && exit 0
  if ! on_debian; then
    echo "Not installed here: ${missing[*]}. Type: sudo apt-get install -y ${missing[*]}" >&2
    exit 1
  fi
  if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT # of this subshell
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
  fi
  for package in "${missing[@]}"; do
    apt_install "$package" || exit 1
  done
)
