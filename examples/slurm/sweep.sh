#!/usr/bin/env bash
# Methods and seeds as a Slurm array, a run each:    sbatch --array=0-11 examples/slurm/sweep.sh -data Cifar100 -nc 20
# Started again (by hand or requeued), what is finished stays and the rest goes on after its last checkpoint.
#SBATCH --job-name=fedcpd
#SBATCH --cpus-per-task=4
#SBATCH --mem=8G
#SBATCH --time=04:00:00
#SBATCH --signal=USR1@300
#SBATCH --requeue
#SBATCH --output=slurm-%A_%a.log
set -euo pipefail

methods=(FedCPD FedRep FedAvg Local)
method=${methods[SLURM_ARRAY_TASK_ID % ${#methods[@]}]}
seed=$((SLURM_ARRAY_TASK_ID / ${#methods[@]}))

cd "${SLURM_SUBMIT_DIR:-.}/system"
export OMP_NUM_THREADS=1 # a client a core is faster than several cores a client
# Five minutes before the time is up USR1 comes: the run ends after the round it is in, with a checkpoint.
srun python main.py -algo "$method" -sd "$seed" -go "sd$seed" --checkpoint_every 5 --resume --reuse "$@"
