#!/usr/bin/env bash
# Installs the browser that the tests of pages run in, from Debian's packages; tests skip where it is missing.
set -euo pipefail
if command -v chromium >/dev/null; then exit 0; fi
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
  echo "chromium is missing and this is no Debian as root: tests of pages will be skipped" >&2
  exit 0
fi
# Installing must never fail or hold up whoever only wants to run the tests, e.g. without a network.
export DEBIAN_FRONTEND=noninteractive
if ! { timeout 120 apt-get update -qq && timeout 600 apt-get install -y -qq --no-install-recommends chromium; } >&2; then
  echo "chromium could not be installed: tests of pages will be skipped" >&2
fi
