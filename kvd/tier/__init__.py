"""Tier files and the movement of objects between them."""
