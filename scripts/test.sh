#!/usr/bin/env bash
# Set-up, lint, format, types, then all tests: the quick ones first, the slow ones after them. Stops at the first failure.
set -euo pipefail
cd "$(dirname "$0")/.."

bash scripts/setup.sh dev
export OMP_NUM_THREADS=1 # torch's spinning workers are slower than one thread on a busy machine
export MPLBACKEND=Agg    # no display needed
bin=.venv/bin

echo "== ruff"
"$bin/ruff" check .
"$bin/ruff" format --check .
echo "== mypy"
"$bin/mypy"
echo "== pytest, quick"
"$bin/pytest" -n 2 --durations=10
echo "== pytest, slow"
"$bin/pytest" -n 2 -m slow --durations=10 || [ $? -eq 5 ] # 5: no test is marked slow
