#!/usr/bin/env bash
# Trains on nodes of 8 GPUs with Open MPI's mpirun, one process on each node; the trainer itself needs no MPI:
#
#   HOSTS=node1,node2,node3,node4 scripts/mpi.sh --config configs/runs/llama3_8b.py --config.workdir=/shared/runs/mine
#
# Without HOSTS, two processes on this machine: a rehearsal. The folder of the code is the same on all nodes.
set -u
PYTHON=${PYTHON:-python3}
HOSTS=${HOSTS:-localhost,localhost}
PORT=${PORT:-8476}                     # free on the first node, and open between the nodes
MOST_RESTARTS=${MOST_RESTARTS:-100}

first=${HOSTS%%,*}                     # process 0 runs on the first node of the list
num_processes=$(awk -F, '{ print NF }' <<< "$HOSTS")
options=(--host "$HOSTS" --map-by slot --bind-to none)   # one process for each name; all cores of its node are its own
[ "$(id -u)" -ne 0 ] || options+=(--allow-run-as-root)   # containers

# NCCL finds its links by itself; -x passes on what your network needs. See scripts/slurm.sbatch for what each one means.
for name in NCCL_DEBUG NCCL_SOCKET_IFNAME NCCL_IB_HCA NCCL_IB_GID_INDEX XLA_FLAGS XLA_CLIENT_MEM_FRACTION; do
  [ -z "${!name:-}" ] || options+=(-x "$name")
done

# Open MPI tells each process its number; where they meet is said here, since version 5 does not tell.
for ((restarts = 0; ; restarts++)); do
  mpirun -n "$num_processes" "${options[@]}" "$PYTHON" -u -m meshtrain.train --coordinator "$first:$PORT" "$@"
  code=$?
  case $code in
    6 | 7 | 13[4-9])  # a hang, a process that was lost or killed: the same command goes on
      [ "$restarts" -lt "$MOST_RESTARTS" ] || exit $code
      echo "exit code $code: start $((restarts + 2))" ;;
    *) exit $code ;;  # 0 done; 5 stopped by a signal and saved: whoever sent it starts again; 2, 3, 4: for a person
  esac
done
