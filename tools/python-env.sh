#!/usr/bin/env bash
# Make .venv hold exactly what a lock says, and this tree, installed editable.
#
#   tools/python-env.sh base    what running needs  (requirements/base.txt)
#   tools/python-env.sh dev     what testing needs  (requirements/dev.txt, which contains base.txt)
#
# One environment serves both: `dev` adds to `base`. What was installed is remembered in .venv
# by content, not by time of change, so a second call, or a branch switched there and back,
# does nothing. A changed lock is installed over the old one, and packages that no lock names any more are removed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/apt.sh

level=${1:?base or dev}
lock=requirements/$level.txt
python=${PYTHON:-python3}
env=.venv

# digest FILE...: one line that stands for their content and for this folder
# (scripts in an environment name its folder, so a moved one is not the same).
digest() {
  { pwd; cat "$@"; } | sha256sum | cut -d ' ' -f 1
}

# interpreter: the file that .venv's python really is; another after an upgrade of the system.
interpreter() {
  readlink -f "$env/bin/python" || true
}

# holds NAME DIGEST: whether that was the last thing installed under this name, for this interpreter.
holds() {
  [ -x "$env/bin/python" ] && [ "$(cat "$env/.installed-$1" 2>/dev/null)" = "$2 $(interpreter)" ]
}

remember() {
  printf '%s %s\n' "$2" "$(interpreter)" >"$env/.installed-$1"
}

# pip_install OPTION...: with pip's words turned into a line of progress; its errors come as they are.
pip_install() {
  local python=$env/bin/python
  "$python" -u -m pip install --disable-pip-version-check --no-input --no-warn-conflicts --progress-bar off "$@" |
    "$python" tools/pip-progress.py "$(grep -c == "$lock")" "$("$python" -c 'import site; print(site.getsitepackages()[0])')"
}

# locked NAME: what the lock says of one package, with its hashes.
locked() {
  awk -v name="$1==" '/^[^ #]/ { inside = index($0, name) == 1 } inside' "$lock"
}

# names: the packages of a lock, or of pip's list, in the same spelling, without ourselves and pip.
names() {
  sed -n 's/^\([A-Za-z0-9._-]*\)==.*/\1/p; s/^\([A-Za-z0-9._-]*\) @ .*/\1/p' | tr 'A-Z_.' 'a-z--' | grep -vx -e tarry -e pip | sort -u
}

current() {
  holds "$level" "$lock_digest" && holds tree "$tree_digest"
}

need_python() {
  if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "Tarry needs Python 3.11 or later, and '$python' is not. Name another one:" >&2
    echo "    make PYTHON=/path/to/python3 ..." >&2
    exit 1
  fi
  "$python" -c 'import ensurepip, venv' 2>/dev/null && return
  # Debian keeps these two modules in a package of their own.
  if on_debian && apt_install python3-venv && "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    return
  fi
  echo "Python's venv module is missing. Type:" >&2
  echo "    sudo apt-get install -y python3-venv" >&2
  exit 1
}

# Digests of what is wanted. pyproject.toml makes the package's metadata and its command.
lock_digest=$(digest "$lock")
tree_digest=$(digest pyproject.toml)
current && exit 0

# Somebody may run `make run` and `make test` side by side on a new clone.
if command -v flock >/dev/null 2>&1; then
  exec 9>.setup.lock
  flock 9
  current && exit 0
fi

# usable: whether the environment was complete once, for this interpreter; a changed lock is then installed over it.
usable() {
  [ -x "$env/bin/python" ] && grep -qsF " $(interpreter)" "$env"/.installed-*
}

if ! holds "$level" "$lock_digest"; then
  need_python
  if ! usable; then
    rm -rf "$env"
    "$python" -m venv "$env"
  fi
  echo "Installing $lock into $env (once) ..." >&2
  # Wheels only: building a package from source would run build tools that no lock names. PySpark is published
  # as source alone; the locked setuptools, put there first, packs it.
  locked setuptools >"$env/setuptools.txt"
  pip_install --require-hashes --only-binary :all: --requirement "$env/setuptools.txt"
  pip_install --require-hashes --only-binary :all: --no-binary pyspark --no-build-isolation --requirement "$lock"
  # Packages that were dropped from the locks.
  unlocked=$(comm -23 <("$env/bin/python" -m pip list --disable-pip-version-check --format freeze | names) <(names <requirements/dev.txt))
  for package in $unlocked; do
    "$env/bin/python" -m pip uninstall --quiet --yes "$package"
  done
  remember base "$(digest requirements/base.txt)"
  remember "$level" "$lock_digest"
fi
if ! holds tree "$tree_digest"; then
  "$env/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --no-deps --no-build-isolation --editable .
  remember tree "$tree_digest"
fi
