"""The kvd daemon: a tiered KV cache behind a FUSE mount."""
