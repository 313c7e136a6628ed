"""What ``kvctl bench`` measures of the data plane: both sides of each promise, interleaved in one run."""
