#!/bin/sh
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
# Trains under Slurm. Two minutes before the end of its time, and when a node fails, Slurm starts this script again; the
# run goes on from the last checkpoint in DIR. It does not ask for nodes: add the options of your cluster.
warned= job=
trap 'warned=yes; [ -z "$job" ] || kill -USR1 $job' USR1
if ls DIR/checkpoint*.safetensors > /dev/null 2>&1; then start='--resume DIR'; else start='--out DIR --overwrite'; fi
mpirun target/release/concise --backend mpi --gpus 4 $start &
job=$!
[ -z "$warned" ] || kill -USR1 $job
while :; do
    wait $job
    status=$?
    kill -0 $job 2> /dev/null || break # else the signal has ended the wait
done
[ -z "$warned" ] || [ "$status" = 0 ] || scontrol requeue "$SLURM_JOB_ID"
exit $status
