"""Pure policies: what to demote, what to reserve."""
