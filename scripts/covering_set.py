"""Which kernel instances and problems are compared between the emulator and a GPU.

Drawn from a seed: every seed family, dtype, layout and kind of size at least once, each with
settings of the tunables that bring in pairs of values not met before, on a problem small enough to
be emulated in seconds. Nothing here runs a kernel.
"""

import dataclasses
import itertools
import math
import random
from collections.abc import Mapping

from l2tune import compile, generate  # noqa: A004
from l2tune.spec.expr import cdiv
from l2tune.spec.gpu import H200
from l2tune.spec.header import Header, parse
from l2tune.spec.kernel import KernelSource, instantiate
from l2tune.verify.admitted import repair
from l2tune.verify.case import Case

SEED = 20261130
DTYPES = ("float16", "bfloat16")
LAYOUTS = ("nn", "nt", "tn", "tt")
VALUES = ("normal", "heavy_tailed", "cancelling", "subnormal", "largest", "nonfinite")
RAGGED = {
    "aligned": "", "ragged_mn": "mn", "ragged_k": "k", "batched": "mnk", "padded": "mnk",
    "tiny": "mnk", "waves": "mn",
}  # fmt: skip
"""Kinds of size, and which of m, n and k are no multiple of the tile there; the others are.

`batched`: 2 or 3 products. `padded`: rows further apart than they are long. `tiny`: 1 to 16.
`waves`: more tiles than blocks, for persistent kernels only.
"""
_FEW_SMS, _ENOUGH_SMS = 4, 16
"""Multiprocessors that a contract is told of: few in `waves`, so that a small problem makes them;
elsewhere enough for a block for each tile, where the launch is that of a GPU with any more.
"""
_MOST_PRODUCTS = {
    "sm80/naive": 1 << 18,
    "sm80/tiled": 1 << 18,
    "sm80/skinny": 1 << 20,
    "sm90a/wgmma_persistent": 1 << 24,
    "sm90a/wgmma_split": 1 << 24,
    "sm90a/wgmma_streamk": 1 << 24,
}
_MOST_PRODUCTS_ELSE = 1 << 23
LEFT_OUT = ("sm90a/wgmma_half",)
"""Written after the committed table, whose rows are kept as they are until it is made anew."""
_PLAIN_TILE = {"sm80/naive": 16, "sm80/tiled": 32}
_DRAWS, _TRIES = 32, 100


@dataclasses.dataclass(frozen=True)
class Entry:
    """One row: an instance of a seed, and what it multiplies.

    Attributes:
        family: The seed's id.
        tunables: Their settled values.
        dtype: Of the operands.
        layout: Storage order of a and b.
        ragged: A key of `RAGGED`.
        sms: Multiprocessors that the contract is told of.
        case: Sizes, strides and values.
    """

    family: str
    tunables: dict[str, int]
    dtype: str
    layout: str
    ragged: str
    sms: int
    case: Case

    def source(self) -> KernelSource:
        """The kernel file, for an H200."""
        text = instantiate(generate.seed_text(self.family), self.tunables)
        flat = compile.flatten(text, generate.include_dir())
        return KernelSource(text=flat, arch="sm_90a", dtype=self.dtype, layout=self.layout)

    def as_row(self) -> dict[str, str]:
        """Columns of a table."""
        case = dataclasses.asdict(self.case)
        triples = {name: " ".join(map(str, case[name])) for name in ("pad", "offset")}
        tunables = " ".join(f"{name}={value}" for name, value in self.tunables.items())
        own = {"family": self.family, "tunables": tunables, "dtype": self.dtype,
               "layout": self.layout, "ragged": self.ragged, "sms": self.sms}  # fmt: skip
        return {name: str(value) for name, value in {**own, **case, **triples}.items()}

    @classmethod
    def of_row(cls, row: Mapping[str, str]) -> "Entry":
        """Read back what `as_row` wrote."""
        fields = {f.name: row[f.name] for f in dataclasses.fields(Case)}
        numbers = {n: int(fields[n]) for n in ("m", "n", "k", "batch", "gap", "seed")}
        triples = {n: tuple(map(int, fields[n].split())) for n in ("pad", "offset")}
        pairs = (text.split("=") for text in row["tunables"].split())
        return cls(
            row["family"], {name: int(value) for name, value in pairs}, row["dtype"],
            row["layout"], row["ragged"], int(row["sms"]), Case(**fields | numbers | triples),
        )  # fmt: skip


def covering_set(seed: int = SEED) -> list[Entry]:
    """Draw the set; the same seed gives the same set."""
    entries: list[Entry] = []
    for family, text in sorted(generate.seed_texts().items()):
        if family in LEFT_OUT:
            continue
        rng = random.Random(f"{seed} {family}")  # so a new family leaves the others as they are
        draw = _Draw(family, text, rng)
        for dtype in DTYPES:
            places = list(itertools.product(LAYOUTS, draw.kinds()))
            values = list(itertools.islice(itertools.cycle(VALUES), len(places)))
            rng.shuffle(values)
            entries += [
                draw.entry(dtype, layout, ragged, chosen)
                for (layout, ragged), chosen in zip(places, values, strict=True)
            ]
    return entries


class _Draw:
    """Draws entries of one family and remembers which pairs of tunables' values they met."""

    def __init__(self, family: str, text: str, rng: random.Random) -> None:
        self._family, self._text, self._rng = family, text, rng
        self._header: Header = parse(text)[1]
        self._met: set[tuple[tuple[str, int], ...]] = set()

    def kinds(self) -> list[str]:
        """The kinds of size that mean something for the family."""
        persistent = any("sms" in launch.grid[0].names for launch in self._header.launch)
        return [name for name in RAGGED if name != "waves" or persistent]

    def entry(self, dtype: str, layout: str, ragged: str, values: str) -> Entry:
        """Draw one: of those that fit, the one that meets the most new pairs."""
        sms = _FEW_SMS if ragged == "waves" else _ENOUGH_SMS
        for _ in range(_TRIES):
            drawn = [self._attempt(ragged, values, sms) for _ in range(_DRAWS)]
            drawn.sort(key=lambda one: len(_pairs(one[0]) - self._met), reverse=True)
            for tunables, case in drawn:
                wanted = Entry(self._family, tunables, dtype, layout, ragged, sms, case)
                entry = self._settle(wanted)
                if entry is not None:
                    self._met |= _pairs(tunables)
                    return entry
        raise ValueError(f"{self._family} {layout} {ragged}: no draw of {_TRIES * _DRAWS} fits")

    def _attempt(self, ragged: str, values: str, sms: int) -> tuple[dict[str, int], Case]:
        """Tunables that go together, and a problem of the kind that is small enough."""
        rng, limits = self._rng, {"smem_limit": H200.smem_limit_bytes, "sms": sms}
        while True:
            choices = self._header.tune.items()
            tunables = {n: rng.choice(v) if isinstance(v, tuple) else v for n, v in choices}
            if not all(condition({**tunables, **limits}) for condition in self._header.where):
                continue
            case = self._case(tunables, ragged, values)
            places = zip(_sizes(case), self._tile(tunables), strict=True)
            products = case.batch * math.prod(
                cdiv(size, extent) * extent for size, extent in places
            )
            if products <= _MOST_PRODUCTS.get(self._family, _MOST_PRODUCTS_ELSE):
                return tunables, case

    def _case(self, tunables: dict[str, int], ragged: str, values: str) -> Case:
        rng, tile = self._rng, self._tile(tunables)
        depth = tunables.get("STAGES", tunables.get("NUM_STAGES", 2))
        deepest = max(depth + 2, 2 * tunables.get("SPLIT", 1))
        most = (4, 4, deepest) if ragged == "waves" else (2, 2, deepest)
        sizes = []
        for name, extent, steps in zip("mnk", tile, most, strict=True):
            whole = rng.randint(1, steps) * extent
            cut = name in RAGGED[ragged] and extent > 1
            sizes.append(whole - rng.randrange(1, extent) if cut else whole)
        if ragged == "tiny":
            sizes = [rng.randint(1, 15) for _ in range(3)]
        case = Case(*sizes, values=values, seed=rng.randrange(1 << 31))
        if ragged == "batched":
            shared, gap = rng.choice(("", "a", "b")), rng.choice((0, 8))
            return dataclasses.replace(case, batch=rng.choice((2, 3)), shared=shared, gap=gap)
        if ragged == "padded":
            pad = tuple(rng.choice((1, 3, 8, 16)) for _ in range(3))
            offset = tuple(rng.choice((0, 1, 8, 64)) for _ in range(3))
            return dataclasses.replace(case, pad=pad, offset=offset)
        return case

    def _tile(self, tunables: dict[str, int]) -> tuple[int, int, int]:
        plain = _PLAIN_TILE.get(self._family)
        if plain is not None:
            return plain, plain, plain
        m, n, k = (tunables.get(f"TILE_{x}", tunables.get(f"BLOCK_{x}", 0)) for x in "MNK")
        return m, n, k

    def _settle(self, entry: Entry) -> Entry | None:
        """Move the case into the contract; None where it is then of another kind."""
        text = instantiate(self._text, entry.tunables)
        source = KernelSource(text=text, arch="sm_90a", dtype=entry.dtype, layout=entry.layout)
        gpu = H200.model_copy(update={"sms": entry.sms})
        case = repair(entry.case, source, gpu)
        if case is None:
            return None
        tile = self._tile(entry.tunables)
        for name, size, extent in zip("mnk", _sizes(case), tile, strict=True):
            if (size % extent != 0) != (name in RAGGED[entry.ragged] and extent > 1):
                return None
        if entry.ragged == "padded" and not all(case.pad):
            return None
        if entry.ragged == "waves":
            names = source.names(case.problem(entry.layout), gpu)
            grids = [launch.grid[0] for launch in source.header.launch]
            if all(grid(names) == grid({**names, "sms": 1 << 20}) for grid in grids):
                return None  # each block has one tile
        return dataclasses.replace(entry, case=case)


def _sizes(case: Case) -> tuple[int, int, int]:
    return case.m, case.n, case.k


def _pairs(tunables: dict[str, int]) -> set[tuple[tuple[str, int], ...]]:
    """Each value of a tunable, and each pair of values."""
    settled = tunables.items()
    return {(one,) for one in settled} | set(itertools.combinations(settled, 2))
