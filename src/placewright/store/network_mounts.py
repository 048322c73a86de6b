"""Network mounts: whether a folder is on a file system that other machines write to as well."""

from __future__ import annotations

import os
import re
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
NETWORK_TYPES = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "coda", "9p", "ceph", "lustre"),
        *("gpfs", "beegfs", "glusterfs", "gfs2", "ocfs2", "orangefs", "pvfs2", "panfs", "wekafs"),
        *("vboxsf", "virtiofs", "davfs", "afpfs"),
    }
)
"""Types of file systems without shared memory or dependable locks between machines."""
LOCAL_FUSE = frozenset({"fuse.fuse-overlayfs", "fuse.ntfs-3g", "fuse.lxcfs", "fuse.bindfs"})
"""File systems in user space that are on this machine; sshfs, s3fs, rclone and others are not."""


def network_mount(folder: Path) -> str | None:
    """The type of the network file system that a folder is on, or will be made on; else None.

    Where the system does not list its mounts, as on macOS, it cannot be known: None.
    """
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    path = os.path.realpath(folder)
    best, found = -1, ""
    for line in lines:
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(" "), after.split(" ")
        if len(fields) < 5:
            continue
        point = _unescape(fields[4])
        is_above = path == point or path.startswith(point.rstrip("/") + "/")
        if is_above and len(point) >= best:  # of two mounts at one point the later is seen
            best, found = len(point), kinds[0]
    is_fuse = found.startswith("fuse.") and found not in LOCAL_FUSE
    return found if is_fuse or found in NETWORK_TYPES else None


def _unescape(text: str) -> str:
    """A path of mountinfo, where a space is `\\040`."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
