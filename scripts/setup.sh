#!/usr/bin/env bash
# Creates .venv and installs what pyproject.toml lists; does nothing when that is already done. With `oldest`: creates
# .venv-oldest, with exactly the oldest versions that pyproject.toml allows.
#   bash scripts/setup.sh [runtime|dev|oldest]    PYTHON=python3.12 bash scripts/setup.sh     chooses the interpreter
set -euo pipefail
cd "$(dirname "$0")/.."

kind="${1:-runtime}"
venv=.venv
case "$kind" in
    runtime) target="." ;;
    dev) target=".[dev]" ;;
    oldest) target="." venv=.venv-oldest ;;
    *) echo "setup: unknown kind '$kind'; use runtime, dev or oldest" >&2; exit 2 ;;
esac
venv_python="$venv/bin/python"

require_311() { # interpreter, what to do
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' && return
    echo "setup: Python 3.11 or newer is needed, but $1 is $("$1" --version 2>&1). $2" >&2
    exit 2
}

if ! "$venv_python" -m pip --version >/dev/null 2>&1; then
    python="${PYTHON:-python3}"
    if ! command -v "$python" >/dev/null; then
        echo "setup: there is no '$python'. Install Python 3.11 or newer, or name one: PYTHON=python3.12 bash $0" >&2
        exit 2
    fi
    require_311 "$python" "Name a newer one: PYTHON=python3.12 bash $0"
    echo "setup: creating $venv with $("$python" --version)"
    "$python" -m venv --clear "$venv" || {
        echo "setup: '$python -m venv' failed; on Debian and Ubuntu install the package python3-venv" >&2
        exit 1
    }
fi
require_311 "$venv_python" "Remove $venv and name a newer one: PYTHON=python3.12 bash $0"

# The stamp names the exact pyproject.toml that was installed, and from where: `import flcore` leads to this folder, so
# that one that was moved is installed again. A development set-up serves as a runtime one too.
stamp="$PWD $("$venv_python" -c 'import hashlib; print(hashlib.sha256(open("pyproject.toml", "rb").read()).hexdigest())')"
for done_kind in dev "$kind"; do
    if [ "$(cat "$venv/installed-$done_kind" 2>/dev/null)" = "$stamp" ]; then
        exit 0
    fi
done

pins=()
if [ "$kind" = oldest ]; then # of a range such as numpy>=1.26 the version 1.26 itself; Flower's Ray is not the oldest
    mapfile -t pins < <("$venv_python" -c '
import tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
names = project["dependencies"] + project["optional-dependencies"]["dev"]
print(*(name.replace(">=", "==") for name in names if not name.startswith("flwr")), sep="\n")')
fi
echo "setup: installing into $venv (the first time this fetches torch, which is large)"
"$venv_python" -m pip install --disable-pip-version-check --no-input -e "$target" "${pins[@]}"
echo "$stamp" >"$venv/installed-$kind"
