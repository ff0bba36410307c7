#!/usr/bin/env bash
# Is there a Java 17 or later? If not: install Debian's headless one (as root), or say what to type.
#
# Only the Spark pipeline needs Java, and no delivery waits for the pipeline. So a missing Java
# is said and is no error. The version is read from the `release` file beside the `java` that
# Spark would start (JAVA_HOME first, then PATH): starting a JVM only to ask costs far more.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source ./apt.sh

OLDEST=17
PACKAGE=default-jre-headless # 17 on Debian 12, 21 on Debian 13

# java_major: print the major version of the Java that Spark would use, or nothing.
java_major() {
  local java version
  if [ -n "${JAVA_HOME:-}" ]; then
    java=$JAVA_HOME/bin/java
  else
    java=$(command -v java) || return 0
  fi
  [ -x "$java" ] || return 0
  java=$(readlink -f "$java")
  version=$(sed -n 's/^JAVA_VERSION="\([^"]*\)".*/\1/p' "${java%/bin/java}/release" 2>/dev/null || true)
  if [ -z "$version" ]; then
    version=$("$java" -version 2>&1 | sed -n 's/.* version "\([^"]*\)".*/\1/p' | head -n 1)
  fi
  version=${version#1.} # "1.8.0_392" is Java 8
  printf '%s' "${version%%[!0-9]*}"
}

enough() {
  local major
  major=$(java_major)
  [ -n "$major" ] && [ "$major" -ge "$OLDEST" ]
}

enough && exit 0
if [ -n "${JAVA_HOME:-}" ]; then
  echo "JAVA_HOME ($JAVA_HOME) holds no Java $OLDEST or later. Point it at one, or unset it." >&2
elif on_debian && apt_install "$PACKAGE" && enough; then
  exit 0
else
  echo "The pipeline needs Java $OLDEST or later (everything else runs without it). Type:" >&2
  echo "    sudo apt-get install -y $PACKAGE" >&2
fi
