"""The version of the installed package."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("kvd")
except PackageNotFoundError:  # from a source tree that was never built
    VERSION = "unknown"
