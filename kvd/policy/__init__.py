"""Pure policies: what to demote, what to reserve, what to let go, what belongs together."""
