#!/usr/bin/env bash
# Builds a real kube-apiserver from Debian's source package, and unpacks an etcd beside it, outside the checkout.
#
# - Does nothing when both are there; prints their folder as its last line.
# - Needs no root, and leaves the system as it is: packages are unpacked, not installed. Afterwards only the two
#   binaries are kept (130 MB).
# - Debian bookworm or newer on x86-64 (apt-get, dpkg-source, and gcc's binutils are used); 3 GB of disk while it
#   builds; 6 minutes of CPU, once.
# - Exits with 3 where there is no apt-get, or it does not have these versions: then the tests are skipped.
#
# KVGATE_KUBERNETES: where they go (${XDG_CACHE_HOME:-$HOME/.cache}/kvgate/kube-apiserver-1.20.2)
set -euo pipefail

KUBERNETES='1.20.5+really1.20.2-1.1+deb12u1'
GO=1.19 # bookworm's: newer ones refuse what 1.20 has vendored

out=${KVGATE_KUBERNETES:-${XDG_CACHE_HOME:-$HOME/.cache}/kvgate/kube-apiserver-1.20.2}
if [[ -x $out/kube-apiserver && -x $out/etcd && -x $out/etcdctl ]]; then
  echo "$out"
  exit 0
fi

cannot() { echo "no kube-apiserver for the tests: $*" >&2; exit 3; }
for tool in apt-get dpkg-source dpkg-deb; do
  command -v "$tool" >/dev/null || cannot "$tool is missing"
done
[[ -r /usr/share/keyrings/debian-archive-keyring.gpg ]] || cannot "this is no Debian"

started=$SECONDS
step() { echo "[$((SECONDS - started)) s] $*" >&2; }

mkdir -p "$(dirname "$out")"
work=$(mktemp -d "$(dirname "$out")/build.XXXXXX")
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT # Go makes its caches read-only
cd "$work"

# Lists of our own: those of the system have no sources, and may be old or of another release.
mkdir -p lists/partial cache/archives/partial
cat >debian.sources <<'END'
Types: deb deb-src
URIs: http://deb.debian.org/debian
Suites: bookworm
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb deb-src
URIs: http://deb.debian.org/debian-security
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
END
apt() {
  apt-get -qq -o Dir::Etc::SourceList="$work/debian.sources" -o Dir::Etc::SourceParts=/dev/null \
    -o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/cache" -o APT::Sandbox::User= "$@"
}
step "downloading kubernetes $KUBERNETES, Go $GO and etcd from Debian"
apt update || cannot "Debian's archive cannot be reached"
apt source --download-only "kubernetes=$KUBERNETES" || cannot "Debian no longer has kubernetes $KUBERNETES"
apt download "golang-$GO-go" "golang-$GO-src" etcd-server etcd-client golang-github-modern-go-reflect2-dev
for package in *.deb; do dpkg-deb -x "$package" root; done

source=$work/go/src/k8s.io/kubernetes
mkdir -p "$(dirname "$source")"
dpkg-source --no-check -x kubernetes_*.dsc "$source" >/dev/null
cd "$source"

# The vendored reflect2 1.0.1 crashes what Go 1.18 and newer build, at the first custom object.
rm -r vendor/github.com/modern-go/reflect2
cp -r "$work/root/usr/share/gocode/src/github.com/modern-go/reflect2" vendor/github.com/modern-go/

export GOROOT=$work/root/usr/lib/go-$GO GOPATH=$work/go GOCACHE=$work/gocache GO111MODULE=off CGO_ENABLED=0
export GOTOOLDIR=$GOROOT/pkg/tool/linux_amd64 GOTELEMETRY=off
go=$GOROOT/bin/go

step "generating the OpenAPI definitions, which the source package lacks"
"$go" build -o "$work/openapi-gen" k8s.io/kubernetes/vendor/k8s.io/kube-openapi/cmd/openapi-gen
folders=$(grep -rl --include '*.go' '+k8s:openapi-gen=' staging/src/k8s.io pkg | grep -v _test.go \
  | grep -v -e k8s.io/code-generator/ -e k8s.io/sample-apiserver/ | xargs -n1 dirname | LC_ALL=C sort -u \
  | sed -e 's#^staging/src/#k8s.io/kubernetes/vendor/#' -e 's#^pkg#k8s.io/kubernetes/pkg#' | paste -sd,)
"$work/openapi-gen" --logtostderr -i "$folders" -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi \
  -h vendor/k8s.io/code-generator/hack/boilerplate.go.txt -r "$work/violations" -o "$work/go/src"

step "building kube-apiserver"
"$go" build -ldflags '-s -w -X k8s.io/component-base/version.gitVersion=v1.20.2' -o "$work/kube-apiserver" \
  k8s.io/kubernetes/cmd/kube-apiserver

mkdir -p "$out"
cp "$work/root/usr/bin/etcd" "$work/root/usr/bin/etcdctl" "$out"
mv "$work/kube-apiserver" "$out" # last: a build that was ended leaves no half server
step "built"
echo "$out"
