"""When each block of a run begins, has its operands, has its sums and ends: an instrumented build, and its picture."""
