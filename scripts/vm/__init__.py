"""The virtual machine bed of `make vm-test`: the host's side. `docs/vm-test.md` tells how it works."""
