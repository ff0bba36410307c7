#!/usr/bin/env bash
# Install Debian's message brokers for the tests: brokers.sh [redis-server] [rabbitmq-server] [nats-server]
#
# A broker that is there already costs nothing. Debian starts a server when it is installed; here
# that is forbidden for the time of the installation, for the tests run private ones on free ports.
# Exit code 1 with a line on standard error where a broker cannot be had.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source ./apt.sh

POLICY=/usr/sbin/policy-rc.d # Debian asks it whether a service may be started

# installed PACKAGE: whether it is there. RabbitMQ's program lies outside the usual path of a user.
installed() {
  dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q 'install ok installed'
}

missing=()
for package in "$@"; do
  installed "$package" || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0
if ! on_debian; then
  echo "Not installed here: ${missing[*]}. Type: sudo apt-get install -y ${missing[*]}" >&2
  exit 1
fi
if [ ! -e "$POLICY" ]; then
  trap 'rm -f "$POLICY"' EXIT
  printf '#!/bin/sh\nexit 101\n' >"$POLICY"
  chmod 755 "$POLICY"
fi
for package in "${missing[@]}"; do
  apt_install "$package"
done
