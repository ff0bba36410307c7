#!/usr/bin/env bash
# Podman for the tests, with everything of its own in a folder: container.sh FOLDER
#
# Podman finds its images, containers and networks by CONTAINERS_STORAGE_CONF=FOLDER/storage.conf and its settings by
# CONTAINERS_CONF=FOLDER/containers.conf, so that nothing is mixed with what the system's Podman has. There is an image
# of Debian, localhost/tarry-base, made from packages: no registry of images is asked. It is like the slim images of
# Python, but with the Python of this Debian. The second time costs next to nothing.
# Exit code 1 with a line on standard error where that cannot be had.
set -euo pipefail
folder=$(realpath -m "$1")
cd "$(dirname "${BASH_SOURCE[0]}")"
source ./apt.sh
source /etc/os-release

if ! on_debian || [ "${ID:-}" != debian ]; then
  echo 'the container is built and run on Debian, as root' >&2
  exit 1
fi
# netavark: networks of which nothing stays when the last container has gone. runc: also on a machine with both kinds of cgroups.
apt_install_unstarted podman runc netavark mmdebstrap
mkdir -p "$folder"

# Podman lowers its own limit to pid_max, and root cannot raise a limit everywhere.
processes=$(ulimit -Hu)
pid_max=$(cat /proc/sys/kernel/pid_max)
if [ "$processes" = unlimited ] || [ "$processes" -gt "$pid_max" ]; then
  processes=$pid_max
fi
cat >"$folder/storage.conf" <<CONF
[storage]
driver = "overlay"
graphroot = "$folder/storage"
runroot = "$folder/run"
CONF
cat >"$folder/containers.conf" <<CONF
[containers]
default_ulimits = ["nofile=$(ulimit -Hn):$(ulimit -Hn)", "nproc=$processes:$processes"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
network_config_dir = "$folder/networks"
CONF
export CONTAINERS_CONF=$folder/containers.conf CONTAINERS_STORAGE_CONF=$folder/storage.conf

podman network exists tarry-test || podman network create --disable-dns tarry-test >/dev/null

# Where Debian comes from, and how, is taken from this machine.
for sources in /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list; do
  [ -s "$sources" ] && break
done
options=()
while IFS= read -r option; do
  options+=(--aptopt="$option")
done < <(apt-config dump --no-empty --format '%F "%v";%n' Acquire::Check-Valid-Until Acquire::http Acquire::https | sed '/^$/d')
for excluded in /usr/share/doc /usr/share/man /usr/share/info /usr/share/locale; do
  options+=(--dpkgopt="path-exclude=$excluded/*")
done
command=(mmdebstrap --quiet --variant=minbase --include=ca-certificates,python3,python3-venv,python-is-python3
  "${options[@]}" "$VERSION_CODENAME" "$folder/base.tar" "$sources")
tag=$(printf '%s\n' "${command[@]}" | sha256sum | cut -c 1-12)
if ! podman image exists "localhost/tarry-base:$tag"; then
  echo "Making an image of Debian $VERSION_CODENAME (once) ..." >&2
  trap 'rm -f "$folder/base.tar"' EXIT
  "${command[@]}" >"$folder/base.log" 2>&1 ||
    { echo "no image of Debian can be made here: $(tail -n 1 "$folder/base.log")" >&2; exit 1; }
  podman import --quiet "$folder/base.tar" "localhost/tarry-base:$tag" >/dev/null
fi
podman tag "localhost/tarry-base:$tag" localhost/tarry-base:latest
