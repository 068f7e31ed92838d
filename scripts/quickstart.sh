#!/usr/bin/env bash
# From a fresh checkout to a comparison of five methods with three seeds on the embedded data set, in a few minutes on
# two cores. Run again, it keeps what is finished.
# PYTHON=python3.12 bash scripts/quickstart.sh     chooses the interpreter
set -euo pipefail
cd "$(dirname "$0")/.."

bash scripts/setup.sh runtime
export MPLBACKEND=Agg # no display needed
python=.venv/bin/python
results=results/quickstart # with its own data set, so that nothing in dataset/ is replaced

echo "== data: 1,078 handwritten digits, 40 clients, Dirichlet(0.3)"
"$python" dataset/generate_Digits.py noniid - dir --num_clients 40 --alpha 0.3 --fraction 0.6 --repair --out "$results/data/Digits"

echo "== FedCPD+, FedCPD, FedRep, FedAvg and Local, three seeds each"
"$python" scripts/sweep.py examples/quickstart.toml

echo "== comparison"
"$python" scripts/report.py "$results" --out "$results/curves.png" --columns "last A,last B,std over clients (A),forgetting,margin"
