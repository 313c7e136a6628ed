"""``kvd``: the daemon's command line."""


def main() -> None:
    """Run the daemon."""
    raise SystemExit("kvd: not yet")
