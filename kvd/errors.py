"""Errors that an operator or a client can act on; each says what happened and what to do."""

import enum
import errno

DRIVE_ERRORS = frozenset(
    (
        errno.EIO,
        errno.EREMOTEIO,
        errno.EUCLEAN,
        errno.ENODEV,
        errno.ENXIO,
        errno.ENOTCONN,
        errno.ESHUTDOWN,
        errno.ESTALE,
    )
)
"""What a drive or its file system says that fails or is away; nothing that an operator has set is wrong then."""


class ExitCode(enum.IntEnum):
    """Exit statuses of ``kvd`` (sysexits.h where it has a fitting one)."""

    OK = 0
    FAILURE = 1
    UNAVAILABLE = 69
    SOFTWARE = 70
    CANT_FLUSH = 74
    CONFIG = 78


class KvdError(Exception):
    """An operator's problem: printed as one sentence, never with a traceback."""

    exit_code: ExitCode = ExitCode.FAILURE
    errno: int = errno.EIO


class ConfigError(KvdError):
    """A setting that can't be used; the message names the key and the mend."""

    exit_code = ExitCode.CONFIG
    errno = errno.EINVAL


class UnavailableError(KvdError):
    """Something that kvd needs is not there: /dev/fuse, a lock, a socket."""

    exit_code = ExitCode.UNAVAILABLE
    errno = errno.ENXIO


class CantFlushError(KvdError):
    """Objects are only in DDR at the end; the tmpfs stays for the next start."""

    exit_code = ExitCode.CANT_FLUSH


class CatalogError(KvdError):
    """A catalogue that is not ours, is newer, or is damaged."""

    exit_code = ExitCode.CONFIG
    errno = errno.EIO


class CatalogDamagedError(CatalogError):
    """A catalogue that is damaged: its files can make another."""


class NotFoundError(KvdError):
    """No such name in the mount."""

    errno = errno.ENOENT


class VanishedError(NotFoundError):
    """An inode that the kernel still knows has gone. On ESTALE the kernel looks the name up again: a miss, or a new file."""

    errno = errno.ESTALE


class BusyError(KvdError):
    """The object is leased: open, mapped or pinned."""

    errno = errno.EBUSY


class NoSpaceError(KvdError):
    """The tier is full and nothing in it may go."""

    errno = errno.ENOSPC


class DamagedError(KvdError):
    """A page failed its checksum or could not be read; the object is quarantined."""

    errno = errno.EIO


class InvalidError(KvdError):
    """What a client asks for makes no sense."""

    errno = errno.EINVAL


class ExistsError(KvdError):
    """The name is taken."""

    errno = errno.EEXIST


class NotEmptyError(KvdError):
    """The directory has names in it."""

    errno = errno.ENOTEMPTY


class MismatchError(KvdError):
    """Somebody offers another fingerprint than the namespace has; the message names each key with both values."""

    errno = errno.EKEYREJECTED


class OverCommittedError(KvdError):
    """More would be guaranteed to namespaces than a tier has; the message says what can be."""

    errno = errno.ENOSPC


class OfflineError(KvdError):
    """The object's bytes are in an NVMe directory that is offline; nothing is known to be wrong with them."""

    errno = errno.EIO
