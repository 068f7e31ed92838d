#!/usr/bin/env bash
# Set-up, lint, format, types, then the tests: the quick ones first, the slow ones after them, with --all those that take
# minutes each as well. Stops at the first failure. With --oldest: the quick tests alone, with the oldest versions of all
# packages that pyproject.toml allows, in an environment of their own.
set -euo pipefail
cd "$(dirname "$0")/.."

export OMP_NUM_THREADS=1 # torch's spinning workers are slower than one thread on a busy machine
export MPLBACKEND=Agg    # no display needed
if [ "${1:-}" = --oldest ]; then
    bash scripts/setup.sh oldest
    exec .venv-oldest/bin/pytest -n 2 --durations=10
fi
bash scripts/setup.sh dev
bin=.venv/bin

echo "== ruff"
"$bin/ruff" check .
"$bin/ruff" format --check .
echo "== mypy"
"$bin/mypy"
echo "== pytest, quick"
"$bin/pytest" -n 2 --durations=10
echo "== pytest, slow"
"$bin/pytest" -n 2 -m slow --durations=10
if [ "${1:-}" = --all ]; then
    echo "== pytest, long"
    "$bin/pytest" -n 2 -m long --durations=10
fi
