"""Cubins, PTX and compile results as content-addressed files.

A file's name is the SHA-256 of its content and is checked at every read, so a flipped byte is a
missing artifact, not a kernel.
"""

import hashlib
from pathlib import Path

from l2tune.spec.outcome import Compiled
from l2tune.store.files import private_directory, write_whole


class Artifacts:
    """The artifact folder of one cache directory."""

    def __init__(self, root: Path) -> None:
        """Open, and make where missing, `root/artifacts`."""
        self._root = private_directory(private_directory(root) / "artifacts")

    def put(self, data: bytes) -> str:
        """Keep `data`; return its SHA-256."""
        digest = hashlib.sha256(data).hexdigest()
        path = self._path(digest)
        if not path.exists() or self.get(digest) is None:
            write_whole(path, data)
        return digest

    def get(self, digest: str) -> bytes | None:
        """Return the content, or None where it is missing or no longer matches its name."""
        try:
            data = self._path(digest).read_bytes()
        except (OSError, ValueError):  # ValueError: a damaged name may hold a zero byte
            return None
        return data if hashlib.sha256(data).hexdigest() == digest else None

    def remember(self, request: str, compiled: Compiled) -> None:
        """Keep a compile result under the hash of everything that decided it.

        The result is an artifact itself and the request's file holds its digest, so that a flipped
        byte in a register count is noticed like one in a cubin.
        """
        digest = self.put(compiled.model_dump_json().encode())
        write_whole(self._root / "compiled" / request, digest.encode())

    def recall(self, request: str) -> Compiled | None:
        """Return an earlier result whose cubins and PTX are all still here and whole."""
        try:
            digest = (self._root / "compiled" / request).read_text()
            compiled = Compiled.model_validate_json(self.get(digest) or b"")
        except (OSError, ValueError):
            return None
        parts = (*compiled.cubins, *compiled.ptx)
        return compiled if all(self.get(part) is not None for part in parts) else None

    def _path(self, digest: str) -> Path:
        return self._root / digest[:2] / digest
