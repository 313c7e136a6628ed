"""The control API: HTTP and JSON on a UNIX socket."""
