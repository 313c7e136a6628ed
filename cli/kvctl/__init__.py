"""The command line of kvd."""
