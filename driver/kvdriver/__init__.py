"""Drives the page-table engine, in process or on a card, through one Device interface."""
