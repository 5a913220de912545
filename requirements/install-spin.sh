#!/bin/sh
# Spin, which checks the models in tests/protocol. Where it cannot be installed this is said, and no error: their tests skip.
set -u
command -v spin >/dev/null 2>&1 && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  apt-get install -y -q spin >/dev/null 2>&1 ||
    { apt-get update -q >/dev/null 2>&1 && apt-get install -y -q spin >/dev/null 2>&1; }
fi
command -v spin >/dev/null 2>&1 || echo "spin is not installed (Debian: apt-get install spin): the models are not checked" >&2
exit 0
