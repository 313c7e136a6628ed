"""``kvctl``: the command line."""


def main() -> None:
    """Run one command."""
    raise SystemExit("kvctl: not yet")
