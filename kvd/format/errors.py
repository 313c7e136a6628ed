"""What is wrong with a description or with a stored file, by name."""

from __future__ import annotations

import errno


class HeaderError(Exception):
    """A file's header can't be used: the file is opaque, and only bit-exact formats are for it."""


class NotDeclaredError(HeaderError):
    """The file is neither safetensors nor npy, and nobody has declared what it holds."""


class TruncatedHeaderError(HeaderError):
    """The header, or what it describes, is longer than the file."""


class OversizedHeaderError(HeaderError):
    """The header is longer, or names more, than kvd looks at."""


class MalformedHeaderError(HeaderError):
    """The header is not what its file format says."""


class MisplacedTensorError(HeaderError):
    """A tensor overlaps another, leaves a gap, or has another length than its shape and dtype come to."""


class LayoutError(Exception):
    """Axes that make no sense, or do not fit a shape or a size."""


class StoredFileError(OSError):
    """A stored file can't be used."""


class NotStoredFileError(StoredFileError):
    """These are not the bytes of a stored file, or not ones that a kvd wrote."""

    def __init__(self, what: str) -> None:
        super().__init__(errno.EPROTO, f"{what}: not a stored file, or one that no kvd wrote")


class NewerStoredFileError(StoredFileError):
    """A newer kvd wrote the file."""

    def __init__(self, what: str) -> None:
        super().__init__(errno.EPROTONOSUPPORT, f"{what}: written by a newer kvd")


class DamagedStoredFileError(StoredFileError):
    """A checksum differs.

    Attributes
    ----------
    page
        Of the object, if one of its pages is to blame; None: the head is.
    """

    def __init__(self, what: str, page: int | None = None) -> None:
        place = "head" if page is None else f"page {page}"
        super().__init__(errno.EBADMSG, f"{what}: {place} is damaged")
        self.page = page
