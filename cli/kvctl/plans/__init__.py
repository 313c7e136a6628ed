"""What ``kvctl plan`` does: a model of costs, and replays of the trace at many sizes."""
