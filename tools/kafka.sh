#!/usr/bin/env bash
# Fetch Apache Kafka with Maven into .cache/kafka for the tests, and print the folder of its jars.
#
# The second time costs nothing. Exit code 1 with a line on standard error where Maven or Java are
# missing or the jars cannot be fetched.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VERSION=3.9.1
FOLDER=$PWD/.cache/kafka/$VERSION

if [ ! -e "$FOLDER/complete" ]; then
  for program in java mvn; do
    command -v "$program" >/dev/null || { echo "Kafka needs $program, which is not here" >&2; exit 1; }
  done
  mkdir -p "$FOLDER"
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  cat >"$FOLDER/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tarry</groupId><artifactId>kafka-for-tests</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>$VERSION</version></dependency>
  </dependencies>
</project>
POM
  if ! mvn -B -q -f "$FOLDER/pom.xml" dependency:copy-dependencies -DincludeScope=runtime \
    -DoutputDirectory="$FOLDER/jars" >"$log" 2>&1; then
    echo "Kafka cannot be fetched with Maven: $(grep -m 1 ERROR "$log" || tail -n 1 "$log")" >&2
    exit 1
  fi
  touch "$FOLDER/complete"
fi
echo "$FOLDER/jars"
