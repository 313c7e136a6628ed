"""The description of what the engine and its drivers say to each other, and what is generated from it."""
