"""Sessions: the unit of lifecycle. Their states, what becomes of them with time, and who holds on to them."""
