"""What survives a crash: names, attributes, copies (SQLite)."""
