"""The mount: pyfuse3 operations over the catalogue and the tiers."""
