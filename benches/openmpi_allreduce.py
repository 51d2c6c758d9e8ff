"""An all-reduce of float32 values in place with Open MPI, for `xtask bench allreduce`.

    mpirun -n K python openmpi_allreduce.py ELEMENTS CALLS

Prints the microseconds of each call, a line each: the longest of the ranks', from a barrier to the
return. Every rank writes its buffer anew before each call, and checks the sum after it.
"""

import sys
import time

import numpy as np
from mpi4py import MPI

WARM_UP = 2


def main(elements, calls):
    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    pattern = np.arange(elements, dtype=np.int64) % 13  # whole numbers: their sums are exact
    pattern = pattern.astype(np.float32)
    expected = size * pattern + size * (size - 1) / 2
    buffer = np.empty_like(pattern)
    for call in range(WARM_UP + calls):
        np.add(pattern, np.float32(rank), out=buffer)
        comm.Barrier()
        start = time.perf_counter()
        comm.Allreduce(MPI.IN_PLACE, buffer, op=MPI.SUM)
        seconds = time.perf_counter() - start
        if not np.array_equal(buffer, expected):
            print(f"rank {rank}: the sum is wrong", file=sys.stderr)
            comm.Abort(1)
        seconds = comm.reduce(seconds, op=MPI.MAX, root=0)
        if rank == 0 and call >= WARM_UP:
            print(f"{seconds * 1e6:.3f}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
