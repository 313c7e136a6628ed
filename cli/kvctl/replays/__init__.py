"""What ``kvctl replay`` does: reads traces, and runs the daemon's own policies over them."""
