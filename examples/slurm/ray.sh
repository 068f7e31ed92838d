#!/usr/bin/env bash
# A Ray cluster inside one job, and one run on it:    sbatch --nodes=4 examples/slurm/ray.sh -algo FedCPD -data Cifar100
# The checkout and the data sets must lie under the same path on all machines.
#SBATCH --job-name=fedcpd-ray
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=04:00:00
#SBATCH --output=slurm-%j.log
set -euo pipefail

cores=${SLURM_CPUS_PER_TASK:-1}
port=${RAY_PORT:-6379}
mapfile -t machines < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${machines[0]}
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT # the cluster ends with the run
export OMP_NUM_THREADS=1 RAY_USAGE_STATS_ENABLED=0
RAY_AUTH_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(32))') # other users of these machines stay out
export RAY_AUTH_TOKEN RAY_AUTH_MODE=token

begin() { # machine, then what `ray start` needs; GPUs of the job are found by Ray
    local machine=$1
    shift
    srun --nodes=1 --ntasks=1 --overlap -w "$machine" ray start "$@" --num-cpus "$cores" --disable-usage-stats --block &
}

begin "$head" --head --port "$port" --include-dashboard=false
for _ in $(seq 60); do # until the head answers
    ray status --address "$head:$port" >/dev/null 2>&1 && break
    sleep 2
done
for machine in "${machines[@]:1}"; do
    begin "$machine" --address "$head:$port"
done
sleep "${RAY_WAIT:-20}" # the others join; those that come later are not waited for

cd "${SLURM_SUBMIT_DIR:-.}/system"
srun --nodes=1 --ntasks=1 --overlap -w "$head" \
    python main.py -ex ray --ray_address "$head:$port" --checkpoint_every 5 --resume "$@"
