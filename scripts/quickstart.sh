#!/usr/bin/env bash
# From a fresh checkout to a comparison of four algorithms on the embedded data set, in a few minutes on two cores.
# Run again, it keeps what is finished.       PYTHON=python3.12 bash scripts/quickstart.sh     chooses the interpreter
set -euo pipefail
cd "$(dirname "$0")/.."
root="$PWD"

bash scripts/setup.sh runtime
export MPLBACKEND=Agg # no display needed
python="$root/.venv/bin/python"
results="$root/results/quickstart" # with its own data set, so that nothing in dataset/ is replaced

echo "== data: handwritten digits, 20 clients, Dirichlet(0.1)"
(cd dataset && "$python" generate_Digits.py noniid - dir --num_clients 20 --alpha 0.1 --out "$results/data/Digits")

files=()
for algorithm in FedCPD FedRep FedAvg Local; do
    echo "== $algorithm"
    (cd system && "$python" main.py -algo "$algorithm" -data Digits -nc 20 -gr 20 -go quickstart \
        --data_dir "$results/data" --results_dir "$results" --reuse --overwrite)
    files+=("$results/Digits_${algorithm}_quickstart_0.h5")
done

echo "== comparison"
"$python" scripts/report.py "${files[@]}" --out "$results/curves.png"
