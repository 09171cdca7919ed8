"""A pack: what is known of one GPU model's keys, as text files that git can diff.

| file | holds |
| --- | --- |
| `pack.toml` | the form's version, and the GPU |
| `records.jsonl` | one line a key, sorted: its kernel's id, verdict, times, checks for the key |
| `kernels.jsonl` | one line a kernel, sorted by id: file, tunables, cubins, checks, origin, tools |
| `rough.jsonl` | rough times of a search, see `l2tune.store.rough`; may be missing |
| `kernels/NAME` | a kernel file, its tunables open, once for all its instances; named by its hash |

No machine code is in it. Reading runs nothing, and takes a pack for a stranger's text: what is not,
byte for byte, what l2tune would have written is refused.
"""

import contextlib
import functools
import hashlib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from l2tune.errors import (
    ExpressionError,
    HeaderError,
    InfrastructureError,
    KeyFormatError,
    PackError,
)
from l2tune.spec.gpu import Arch, Gpu
from l2tune.spec.header import parse
from l2tune.spec.kernel import KernelSource
from l2tune.spec.key import Dtype, GemmKey, Layout
from l2tune.spec.record import Record
from l2tune.store.entry import Entry
from l2tune.store.files import write_whole
from l2tune.store.lines import Line, said
from l2tune.store.packed import FILE_NAME, PackedKernel, file_name, reopened

_SCHEMA_VERSION = 3
"""Of a pack's form; a record's has nothing to do with it, for no line becomes a record."""
_HEAD, _RECORDS, _KERNELS = "pack.toml", "records.jsonl", "kernels.jsonl"
_FILES = "kernels"
_MAX_LINES_BYTES, _MAX_KERNEL_BYTES = 256 << 20, 400_000
_Read = TypeVar("_Read", bound=Line)


class Pack:
    """A pack that was read, every line of it validated; kernel files are read when asked for.

    Attributes:
        folder: Where it is.
        gpu: The GPU model that it is for, and no other.
        entries: One for each key, sorted by key.
        kernels: By id, each of them some entry's.
    """

    def __init__(
        self, folder: Path, gpu: Gpu, entries: tuple[Entry, ...], kernels: dict[str, PackedKernel]
    ) -> None:
        """Keep what `read` found."""
        self.folder, self.gpu, self.entries, self.kernels = folder, gpu, entries, kernels
        self._by_key = {entry.key: entry for entry in entries}
        self._file = functools.cache(self._read_file)
        self._settled = functools.cache(self._settle)

    @classmethod
    def read(cls, folder: Path) -> "Pack":
        """Read all but the kernel files.

        Raises:
            PackError: If there is no pack, or it is not what l2tune writes.
        """
        gpu = _read_head(folder / _HEAD)
        entries = _read_lines(folder / _RECORDS, Entry, gpu)
        packed = _read_lines(folder / _KERNELS, PackedKernel, gpu)
        _check_order(folder / _RECORDS, "keys", [str(entry.key) for entry in entries])
        _check_order(folder / _KERNELS, "kernels", [kernel.id for kernel in packed])
        kernels = {kernel.id: kernel for kernel in packed}
        named = {entry.kernel for entry in entries}
        if lost := sorted(named - kernels.keys()):
            raise PackError(f"{folder / _KERNELS}: lacks {lost[0][:80]!r}, which a key names")
        if unused := sorted(kernels.keys() - named):
            raise PackError(f"{folder / _KERNELS}: no key names {unused[0]!r}")
        return cls(folder, gpu, entries, kernels)

    def source(self, entry: Entry, *, gpu: Gpu | None = None) -> KernelSource:
        """The kernel of an entry, for the pack's GPU or another.

        Raises:
            PackError: If its file is missing or changed, or it is not one for the entry's key.
        """
        gpu = gpu or self.gpu
        key = entry.key.model_copy(update={"gpu": gpu})
        path = self._path(entry.kernel)
        try:
            source = self._settled(entry.kernel, gpu.arch or "sm_80", key.dtype, key.layout)
            serves = source.serves(key)
        except (HeaderError, ExpressionError, RecursionError) as error:
            raise PackError(f"{path}: {error}") from None
        if not serves:
            raise PackError(f"{path}: {source.name} does not serve {key}")
        return source

    def keys_on(self, gpu: Gpu) -> list[GemmKey]:
        """Its products as keys of another GPU."""
        return [entry.key.model_copy(update={"gpu": gpu}) for entry in self.entries]

    def candidates(self, key: GemmKey) -> list[KernelSource]:
        """What the pack has for a product, to be tried on the key's GPU; none if it cannot run."""
        entry = self._by_key.get(key.model_copy(update={"gpu": self.gpu}))
        if entry is None:
            return []
        try:
            return [self.source(entry, gpu=key.gpu)]
        except PackError:
            self.source(entry)  # a damaged file is an error, another GPU's kernel is none
            return []

    def texts(self) -> list[str]:
        """Its kernel files.

        Raises:
            PackError: If one is missing or changed.
        """
        names = sorted({kernel.file for kernel in self.kernels.values()})
        return [self._file(self.folder / _FILES / name) for name in names]

    def unused(self) -> list[Path]:
        """Files of `kernels/` that no entry names."""
        used = {kernel.file for kernel in self.kernels.values()}
        return sorted(p for p in (self.folder / _FILES).glob("*") if p.name not in used)

    def _path(self, kernel: str) -> Path:
        return self.folder / _FILES / self.kernels[kernel].file

    def _read_file(self, path: Path) -> str:
        text = _read_text(path, _MAX_KERNEL_BYTES)
        if hashlib.sha256(text.encode()).hexdigest()[:16] != path.stem:
            raise PackError(f"{path}: its text does not match its name")
        return text

    def _settle(self, kernel: str, arch: Arch, dtype: Dtype, layout: Layout) -> KernelSource:
        path = self._path(kernel)
        text = self.kernels[kernel].settled(self._file(path))
        source = KernelSource(text=text, arch=arch, dtype=dtype, layout=layout)
        if path.name != file_name(self._file(path), source.backend):
            raise PackError(f"{path}: a kernel of {source.backend} is not called so")
        return source


def write(
    folder: Path,
    gpu: Gpu,
    records: Iterable[Record],
    templates: Iterable[str] = (),
) -> Pack:
    """Write a pack, in the place of one that is there.

    The same records make the same bytes over the same pack, or where there was none.

    Args:
        folder: Where it goes.
        gpu: The GPU that it is for.
        records: One for each key.
        templates: Kernel files with open tunables, headers flattened; what is an instance of one,
            or of a file of the pack that is there, is stored as such, all else as it is.

    Raises:
        PackError: If `folder` holds something else, or a record cannot be in a pack of `gpu`.
        CacheError: If the folder cannot be written.
    """
    if folder.exists() and not (folder / _HEAD).is_file() and any(folder.iterdir()):
        raise PackError(f"{folder} holds something else than a pack; name another folder")
    by_id = _by_id([*templates, *_texts_of(folder)])
    lines: list[str] = []
    kernels: dict[str, str] = {}
    texts: dict[str, str] = {}
    for record in sorted(records, key=lambda record: str(record.key)):
        if record.key.gpu != gpu:
            raise PackError(f"{folder}: a pack for {gpu} cannot hold {record.key}")
        entry, kernel, text = _parts(record, by_id)
        lines.append(entry.line)
        kernels[kernel.id] = kernel.line
        texts[kernel.file] = text
    for name, text in texts.items():
        write_whole(folder / _FILES / name, text.encode())
    _write_lines(folder / _KERNELS, [line for _, line in sorted(kernels.items())])
    _write_lines(folder / _RECORDS, lines)
    write_whole(folder / _HEAD, _head(gpu).encode())
    pack = Pack.read(folder)
    for path in pack.unused():
        if FILE_NAME.fullmatch(path.name):
            path.unlink()
    return pack


def shipped_folder() -> Path:
    """`cache/`: inside the package when installed, beside it in a checkout.

    Raises:
        InfrastructureError: If there is none.
    """
    package = Path(__file__).resolve().parents[1]
    for root in (package / "cache", package.parent / "cache"):
        if root.is_dir():
            return root
    raise InfrastructureError(f"no cache folder beside {package}; reinstall l2tune")


def find(name: str) -> Path:
    """A pack's folder: `name` itself where it is one, else that of a shipped pack.

    Raises:
        PackError: If there is neither.
    """
    given = Path(name)
    if (given / _HEAD).is_file():
        return given
    root = shipped_folder()
    shipped = sorted(path.parent.name for path in root.glob(f"*/{_HEAD}"))
    if name not in shipped:
        raise PackError(f"no pack {name!r}: needed a folder with {_HEAD}, or one of {shipped}")
    return root / name


def _texts_of(folder: Path) -> list[str]:
    """The kernel files of a pack; none where there is none that can be read."""
    try:
        return Pack.read(folder).texts()
    except PackError:
        return []


def _by_id(texts: Iterable[str]) -> dict[str, list[str]]:
    """Kernel files by their id, in their order; what is none is left out."""
    found: dict[str, list[str]] = {}
    for text in texts:
        with contextlib.suppress(HeaderError):
            found.setdefault(parse(text)[1].id, []).append(text)
    return found


def _parts(
    record: Record, templates: Mapping[str, Iterable[str]]
) -> tuple[Entry, PackedKernel, str]:
    """A record's two lines, which read back as themselves, and its kernel's file."""
    source, said_of = record.verified.compiled.source, record.key.label
    text, values = reopened(source, templates.get(source.header.id, ()))
    try:
        kernel = PackedKernel.of(record, text, values)
        entry = Entry.of(record, kernel.id)
        lines = kernel.line, entry.line
    except ValueError as error:
        raise PackError(f"{said_of}: {said(error)}") from None
    PackedKernel.read(lines[0], said_of, record.key.gpu)
    Entry.read(lines[1], said_of, record.key.gpu)
    return entry, kernel, text


def _write_lines(path: Path, lines: list[str]) -> None:
    write_whole(path, "".join(f"{line}\n" for line in lines).encode())


def _read_lines(path: Path, kind: type[_Read], gpu: Gpu) -> tuple[_Read, ...]:
    lines = _read_text(path, _MAX_LINES_BYTES).split("\n")
    if lines.pop():
        raise PackError(f"{path}: its last line is cut off")
    return tuple(
        kind.read(line, f"{path}, line {number}", gpu) for number, line in enumerate(lines, 1)
    )


def _check_order(path: Path, what: str, names: list[str]) -> None:
    if names != sorted(set(names)):
        raise PackError(f"{path}: {what} are not sorted, or one is there twice")


def _head(gpu: Gpu) -> str:
    return f'schema_version = {_SCHEMA_VERSION}\ngpu = "{gpu}"\n'


def _read_head(path: Path) -> Gpu:
    text = _read_text(path, 1 << 16)
    try:
        found = tomllib.loads(text)
        if found.get("schema_version") != _SCHEMA_VERSION:
            raise PackError(
                f"{path}: schema {found.get('schema_version')}, needed {_SCHEMA_VERSION}"
            )
        gpu = Gpu.parse(str(found.get("gpu")))
    except (tomllib.TOMLDecodeError, KeyFormatError) as error:
        raise PackError(f"{path}: {error}") from None
    if text != _head(gpu):
        raise PackError(f"{path}: holds more than a schema version and a GPU")
    return gpu


def _read_text(path: Path, limit_bytes: int) -> str:
    try:
        if not path.is_file():
            raise PackError(f"{path}: no such file")
        if path.stat().st_size > limit_bytes:
            raise PackError(f"{path}: larger than {limit_bytes} bytes")
        return path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise PackError(f"{path}: {error}") from None
