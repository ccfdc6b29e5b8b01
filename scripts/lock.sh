#!/usr/bin/env bash
# Resolves the dependencies that pyproject.toml declares and pins them in requirements/: cpu.txt and gpu.txt for the
# two builds of vLLM, tools for development included. (What the model's code may import is pinned by hand, in
# env/image-requirements.txt: changing it changes results.)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

uv=uv
if [ -x .setup/uv/bin/uv ]; then
  uv=.setup/uv/bin/uv
fi
"$uv" --version >/dev/null || {
  echo "lock: no uv on the PATH or in .setup; run make setup first" >&2
  exit 1
}

compile() { # compile NAME OPTION...: versions only; where packages come from is each machine's own affair
  local name=$1
  shift
  "$uv" pip compile --quiet --upgrade --python-version "$(<.python-version)" --python-platform x86_64-manylinux_2_28 \
    --no-header --no-annotate --no-emit-index-url --no-emit-find-links "$@" --output-file "requirements/$name.txt"
  echo "requirements/$name.txt: $(wc -l <"requirements/$name.txt") packages"
}

mkdir -p requirements
compile cpu pyproject.toml --extra cpu --group dev
compile gpu pyproject.toml --extra gpu --group dev
