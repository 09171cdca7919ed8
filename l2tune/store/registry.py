"""Records and verdicts by key, in a database that many processes share.

Everything read is validated, and whatever is wrong with it makes it a miss with one warning: a
cache may cost speed, never an answer. What is said to be stored is stored, or `CacheError` is
raised.
"""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar

from pydantic import TypeAdapter, ValidationError

from l2tune.errors import CacheError, CacheWarning, KeyFormatError
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import CompileFailed, Refuted
from l2tune.spec.record import SCHEMA_VERSION, EstimatedRecord, Record
from l2tune.store.database import Database, DatabaseError
from l2tune.store.files import private_directory
from l2tune.version import __version__

_REFUSAL: TypeAdapter[Refuted | CompileFailed] = TypeAdapter(Refuted | CompileFailed)
_Read = TypeVar("_Read", Record, EstimatedRecord)
_warned: set[tuple[str, Path]] = set()


class Store(Protocol):
    """What dispatch asks of a cache."""

    def get(self, key: GemmKey) -> Record | None:
        """Return the record that may be used for `key`."""

    def miss(self, key: GemmKey, *, count: int = 1, nearest: str = "") -> None:
        """Note that calls found no record for `key`, and which kernel was taken instead."""


class Registry:
    """The records, refusals and quarantined kernels of one cache directory.

    Safe for many threads and processes of one machine. The directory must be on a local disk:
    sqlite's locks do not hold on network file systems, which are not supported; give each machine
    its own directory and carry records between them as a pack.

    Verdicts on refused candidates, and estimates, each lie in a database of their own, which may be
    deleted at any time. What is read from one is never taken for what belongs in another.
    """

    def __init__(self, root: Path) -> None:
        """Make the directories; databases are opened at their first use.

        Raises:
            CacheError: If a directory cannot be made or written, or others may write to it.
        """
        root = private_directory(root)
        self._records = Database(root / "records")
        self._refusals = Database(root / "refusals")
        self._estimates = Database(root / "estimates")

    def get(self, key: GemmKey) -> Record | None:
        """Return the record for exactly this key, unless its kernel is quarantined.

        Never raises: a record that cannot be read is missing, with a `CacheWarning` the first time.
        """
        try:
            record = _read(self._records, _record_name(key), _parse)
            if record is None or self._records.get(_quarantine_name(_digest(record))) is not None:
                return None
        except DatabaseError as error:
            _warn_once(error)
            return None
        return record

    def put(self, record: Record) -> None:
        """Store `record` in the place of any other for its key, which is then no longer wanted.

        Raises:
            CacheError: If it contradicts itself, or the database cannot be written.
        """
        name = _record_name(record.key)
        text = _text_of(record, name, _parse, "record")
        with self._records.transaction():
            self._records.put(name, text)
            self._records.remove(_wanted_name(record.key))
            self._records.remove(_nearest_name(record.key))

    def records(self) -> Iterator[Record]:
        """Every readable record, quarantined or not, of every GPU; skips the rest, warning once."""
        return self._readable(self._records, _RECORD, _parse)

    def forget(self, key: GemmKey) -> None:
        """Remove the record for `key`, if there is one.

        Raises:
            CacheError: If the database cannot be written.
        """
        self._records.remove(_record_name(key))

    def get_estimate(self, key: GemmKey) -> EstimatedRecord | None:
        """Return what was estimated for exactly this key. Never raises, as `get`."""
        try:
            return _read(self._estimates, _estimate_name(key), _parse_estimate)
        except DatabaseError as error:
            _warn_once(error)
            return None

    def put_estimate(self, record: EstimatedRecord) -> None:
        """Store an estimate in the place of any other for its key; records are left as they are.

        Raises:
            CacheError: If it contradicts itself, or the database cannot be written.
        """
        name = _estimate_name(record.key)
        self._estimates.put(name, _text_of(record, name, _parse_estimate, "estimate"))

    def estimates(self) -> Iterator[EstimatedRecord]:
        """Every readable estimate, of every GPU; skips the rest, warning once."""
        return self._readable(self._estimates, _ESTIMATE, _parse_estimate)

    def refusal(self, key: GemmKey, digest: str) -> Refuted | CompileFailed | None:
        """Return why this version of l2tune refused the kernel of this digest for `key`, if it did.

        Never raises; a verdict of another version does not count, for its gate may have erred.
        """
        try:
            text = self._refusals.get(_refusal_name(key, digest))
            return None if text is None else _REFUSAL.validate_json(text)
        except ValidationError as error:
            _warn_once(_unreadable(self._refusals, error))
        except DatabaseError as error:
            _warn_once(error)
        return None

    def remember_refusal(self, key: GemmKey, digest: str, value: Refuted | CompileFailed) -> None:
        """Keep a verdict, so that the candidate is not tried again.

        Never raises: a verdict that cannot be kept costs one more trial.
        """
        try:
            self._refusals.put(_refusal_name(key, digest), value.model_dump_json())
        except DatabaseError as error:
            _warn_once(error)

    def refusals(self) -> Iterator[tuple[GemmKey, str, Refuted | CompileFailed]]:
        """Every verdict of this version of l2tune: key, kernel's digest, why it was refused."""
        prefix = _refusal_prefix()
        for name in self._names(prefix, self._refusals):
            try:
                key = GemmKey.parse(name.removeprefix(prefix).rpartition("/")[0])
            except KeyFormatError as error:
                _warn_once(_unreadable(self._refusals, error))
                continue
            digest = name.rpartition("/")[2]
            verdict = self.refusal(key, digest)
            if verdict is not None:
                yield key, digest, verdict

    def quarantine(self, digest: str) -> None:
        """Withdraw a kernel from every key, for good.

        Raises:
            CacheError: If the database cannot be written.
        """
        self._records.put(_quarantine_name(digest), "")

    def quarantined(self) -> frozenset[str]:
        """Digests of the withdrawn kernels; a row's being there counts, whatever it holds."""
        return frozenset(name.removeprefix(_QUARANTINE) for name in self._names(_QUARANTINE))

    def miss(self, key: GemmKey, *, count: int = 1, nearest: str = "") -> None:
        """Add to the calls that found no record for `key`. Never raises.

        Args:
            key: What they computed.
            count: How many they were.
            nearest: Name of the kernel that serves it meanwhile; empty where `torch.matmul` does.
        """
        name = _wanted_name(key)
        try:
            with self._records.transaction():
                before = _count(self._records.get(name))
                self._records.put(name, str(before + count))
                if nearest:
                    self._records.put(_nearest_name(key), nearest)
                else:
                    self._records.remove(_nearest_name(key))
        except DatabaseError as error:
            _warn_once(error)

    def wanted(self) -> list[tuple[GemmKey, int]]:
        """Keys that calls did not find, with how often, most wanted first."""
        found = []
        for name in self._names(_WANTED):
            try:
                key = GemmKey.parse(name.removeprefix(_WANTED))
                found.append((key, _count(self._records.get(name))))
            except KeyFormatError as error:
                _warn_once(_unreadable(self._records, error))
            except DatabaseError as error:
                _warn_once(error)
        return sorted(found, key=lambda entry: -entry[1])

    def served_by_nearest(self) -> dict[GemmKey, str]:
        """Keys without a record that a kernel tuned for another serves, with the kernel's name."""
        found = {}
        for key, _ in self.wanted():
            try:
                kernel = self._records.get(_nearest_name(key))
            except DatabaseError as error:
                _warn_once(error)
                continue
            if kernel is not None:
                found[key] = kernel
        return found

    def _names(self, prefix: str, database: Database | None = None) -> list[str]:
        try:
            return list((database or self._records).names(prefix))
        except DatabaseError as error:
            _warn_once(error)
            return []

    def _readable(
        self, database: Database, prefix: str, parse: Callable[[str, str], _Read]
    ) -> Iterator[_Read]:
        for name in self._names(prefix, database):
            try:
                found = _read(database, name, parse)
            except DatabaseError as error:
                _warn_once(error)
                continue
            if found is not None:
                yield found


_RECORD = f"record/{SCHEMA_VERSION}/"
_ESTIMATE = f"estimate/{SCHEMA_VERSION}/"
_QUARANTINE = "quarantine/"
_WANTED = f"wanted/{SCHEMA_VERSION}/"
_NEAREST = f"nearest/{SCHEMA_VERSION}/"


def _record_name(key: GemmKey) -> str:
    return f"{_RECORD}{key}"


def _estimate_name(key: GemmKey) -> str:
    return f"{_ESTIMATE}{key}"


def _quarantine_name(digest: str) -> str:
    return f"{_QUARANTINE}{digest}"


def _wanted_name(key: GemmKey) -> str:
    return f"{_WANTED}{key}"


def _nearest_name(key: GemmKey) -> str:
    return f"{_NEAREST}{key}"


def _refusal_name(key: GemmKey, digest: str) -> str:
    return f"{_refusal_prefix()}{key}/{digest}"


def _refusal_prefix() -> str:
    return f"refusal/{SCHEMA_VERSION}/{__version__}/"


def _digest(record: Record) -> str:
    return record.verified.compiled.source.digest


def _count(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0


def _read(database: Database, name: str, parse: Callable[[str, str], _Read]) -> _Read | None:
    text = database.get(name)
    try:
        return None if text is None else parse(name, text)
    except ValueError as error:
        raise _unreadable(database, error) from error


def _text_of(record: _Read, name: str, parse: Callable[[str, str], _Read], what: str) -> str:
    """What is stored of a record: only what reads back as itself."""
    try:
        text = record.model_dump_json()
        if parse(name, text) != record:
            raise ValueError("it does not read back as itself")
    except ValueError as error:
        raise CacheError(f"{what} for {record.key} is not stored: {error}") from error
    return text


def _parse(name: str, text: str) -> Record:
    record = Record.model_validate_json(text)
    _check(record, _record_name(record.key), name)
    return record


def _parse_estimate(name: str, text: str) -> EstimatedRecord:
    record = EstimatedRecord.model_validate_json(text)
    _check(record, _estimate_name(record.key), name)
    return record


def _check(record: Record | EstimatedRecord, own_name: str, name: str) -> None:
    """Refuse one moved to another key, or whose kernel is not one for its key."""
    verified = record.verified
    if record.schema_version != SCHEMA_VERSION:
        raise ValueError(f"schema {record.schema_version}, needed {SCHEMA_VERSION}")
    if own_name != name or verified.key != record.key:
        raise ValueError(f"{name} holds {record.key} with a proof for {verified.key}")
    if not verified.compiled.source.serves(record.key):
        raise ValueError(f"{verified.compiled.source.name} does not serve {record.key}")


def _unreadable(database: Database, error: Exception) -> DatabaseError:
    said = str(error).splitlines()[0][:300]
    return DatabaseError(
        "unreadable row", database.directory,
        f"cache database {database.directory}: a row does not hold what l2tune writes ({said});"
        " it counts as missing; tune its key again",
    )  # fmt: skip


def _warn_once(error: DatabaseError) -> None:
    """Warn the first time that this process meets this cause in this database."""
    seen = (error.cause, error.directory)
    if seen not in _warned:
        _warned.add(seen)
        warnings.warn(str(error), CacheWarning, stacklevel=3)
