"""`make format-report`: what each format costs a real model, and what it saves (docs/formats.md)."""
