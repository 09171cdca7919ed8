"""A pack: what is known of one GPU model's keys, as text files that git can diff.

| file | holds |
| --- | --- |
| `pack.toml` | schema version and GPU |
| `records.jsonl` | one line a key, sorted: kernel, verdict, times, checks, origin, tools |
| `kernels/NAME` | a kernel file, once however many keys it is for; named by the hash of its text |

No machine code is in it. Reading runs nothing, and takes a pack for a stranger's text: what is not,
byte for byte, what l2tune would have written is refused.
"""

import hashlib
import tomllib
from collections.abc import Iterable
from pathlib import Path

from l2tune.errors import (
    ExpressionError,
    HeaderError,
    InfrastructureError,
    KeyFormatError,
    PackError,
)
from l2tune.spec.gpu import Gpu
from l2tune.spec.kernel import KernelSource
from l2tune.spec.key import GemmKey
from l2tune.spec.record import SCHEMA_VERSION, Record
from l2tune.store.entry import KERNEL_NAME, SUFFIX, Entry, line_of, read_line
from l2tune.store.files import write_whole

_HEAD, _RECORDS, _KERNELS = "pack.toml", "records.jsonl", "kernels"
_MAX_RECORDS_BYTES, _MAX_KERNEL_BYTES = 256 << 20, 400_000


class Pack:
    """A pack that was read, every line of it validated; kernel files are read when asked for.

    Attributes:
        folder: Where it is.
        gpu: The GPU model that it is for, and no other.
        entries: One for each key, sorted by key.
    """

    def __init__(self, folder: Path, gpu: Gpu, entries: tuple[Entry, ...]) -> None:
        """Keep what `read` found."""
        self.folder, self.gpu, self.entries = folder, gpu, entries

    @classmethod
    def read(cls, folder: Path) -> "Pack":
        """Read `pack.toml` and `records.jsonl`.

        Raises:
            PackError: If there is no pack, or it is not what l2tune writes.
        """
        gpu = _read_head(folder / _HEAD)
        text = _read_text(folder / _RECORDS, _MAX_RECORDS_BYTES)
        lines = text.split("\n")
        if lines.pop():
            raise PackError(f"{folder / _RECORDS}: its last line is cut off")
        entries = tuple(
            read_line(line, f"{folder / _RECORDS}, line {number}")
            for number, line in enumerate(lines, 1)
        )
        keys = [str(entry.key) for entry in entries]
        if keys != sorted(set(keys)):
            raise PackError(f"{folder / _RECORDS}: keys are not sorted, or one is there twice")
        for entry in entries:
            if entry.key.gpu != gpu:
                raise PackError(f"{folder}: a pack for {gpu} holds {entry.key}")
        return cls(folder, gpu, entries)

    def source(self, entry: Entry, *, gpu: Gpu | None = None) -> KernelSource:
        """The kernel of an entry, for the pack's GPU or another.

        Raises:
            PackError: If its file is missing or changed, or it is not one for the entry's key.
        """
        path, gpu = self.folder / _KERNELS / entry.kernel, gpu or self.gpu
        text = _read_text(path, _MAX_KERNEL_BYTES)
        if hashlib.sha256(text.encode()).hexdigest()[:16] != path.stem:
            raise PackError(f"{path}: its text does not match its name")
        key = entry.key.model_copy(update={"gpu": gpu})
        try:
            source = KernelSource(
                text=text, arch=gpu.arch or "sm_80", dtype=key.dtype, layout=key.layout
            )
            serves = source.serves(key)
        except (HeaderError, ExpressionError, RecursionError) as error:
            raise PackError(f"{path}: {error}") from None
        if path.suffix != SUFFIX[source.backend] or not serves:
            raise PackError(f"{path}: {source.name} does not serve {key}")
        return source

    def keys_on(self, gpu: Gpu) -> list[GemmKey]:
        """Its products as keys of another GPU."""
        return [entry.key.model_copy(update={"gpu": gpu}) for entry in self.entries]

    def candidates(self, key: GemmKey) -> list[KernelSource]:
        """What the pack has for a product, to be tried on the key's GPU; none if it cannot run."""
        same = key.model_copy(update={"gpu": self.gpu})
        found = []
        for entry in self.entries:
            if entry.key == same:
                try:
                    found.append(self.source(entry, gpu=key.gpu))
                except PackError:
                    self.source(entry)  # a damaged file is an error, another GPU's kernel is none
        return found

    def unused(self) -> list[Path]:
        """Files of `kernels/` that no entry names."""
        used = {entry.kernel for entry in self.entries}
        return sorted(p for p in (self.folder / _KERNELS).glob("*") if p.name not in used)


def write(folder: Path, gpu: Gpu, records: Iterable[Record]) -> Pack:
    """Write a pack, in the place of one that is there; the same records make the same bytes.

    Raises:
        PackError: If `folder` holds something else, or a record cannot be in a pack of `gpu`.
        CacheError: If the folder cannot be written.
    """
    if folder.exists() and not (folder / _HEAD).is_file() and any(folder.iterdir()):
        raise PackError(f"{folder} holds something else than a pack; name another folder")
    lines, texts = [], {}
    for record in sorted(records, key=lambda record: str(record.key)):
        if record.key.gpu != gpu:
            raise PackError(f"{folder}: a pack for {gpu} cannot hold {record.key}")
        line = line_of(record)
        lines.append(f"{line}\n")
        texts[read_line(line, record.key.label).kernel] = record.verified.compiled.source.text
    for name, text in texts.items():
        write_whole(folder / _KERNELS / name, text.encode())
    write_whole(folder / _RECORDS, "".join(lines).encode())
    write_whole(folder / _HEAD, _head(gpu).encode())
    pack = Pack.read(folder)
    for path in pack.unused():
        if KERNEL_NAME.fullmatch(path.name):
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


def _head(gpu: Gpu) -> str:
    return f'schema_version = {SCHEMA_VERSION}\ngpu = "{gpu}"\n'


def _read_head(path: Path) -> Gpu:
    text = _read_text(path, 1 << 16)
    try:
        found = tomllib.loads(text)
        if found.get("schema_version") != SCHEMA_VERSION:
            raise PackError(
                f"{path}: schema {found.get('schema_version')}, needed {SCHEMA_VERSION}"
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
