#!/usr/bin/env bash
# Install Debian's programs for the tests: brokers.sh [redis-server] [rabbitmq-server] [nats-server] [faketime]
#
# None is started as a service, for the tests run private ones on free ports.
# Exit code 1 with a line on standard error where a broker cannot be had.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source ./apt.sh

apt_install_unstarted "$@"
