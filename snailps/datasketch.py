"""datasketch's MinHash and MinHashLSH: ``from snailps.datasketch import MinHash, MinHashLSH``.

    sets of bytes -> MinHash: signatures, Jaccard similarities -> MinHashLSH: sets that may be alike

A table of names on `duplicates._bins`; docs/duplicates.md lists what differs on purpose.  Whoever
wants copies of texts gone has a better way: `snailps.dedup` compares complete sets.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.duplicates._bins import EMPTY, SetBins

__all__ = ["MinHash", "MinHashLSH"]
SCHEME = "bins32"
"""What `MinHash.scheme` says: hashes, and so signatures, are other ones than datasketch's."""
HASHES = 1 << 64


class MinHash:
    """A signature of a set: `num_perm` numbers, of which two sets share about their Jaccard share.

    The error of `jaccard` is that of datasketch, sqrt(J (1 - J) / num_perm).  All numbers come of
    one permutation, so a value costs the same whatever `num_perm` is.

    Parameters
    ----------
    num_perm : int
        Numbers of the signature.
    seed : int
        Signatures are compared with those of the same seed.
    hashfunc : callable, optional
        Makes a whole number of a value, at most 64 bits.  Without it values are bytes.
    hashvalues : array of uint32, optional
        What `digest` returned: can be compared, and not changed.
    gpu_mode, hashobj : ignored
        Taken so that a call need not change; ``gpu_mode="always"`` is refused.

    Raises
    ------
    ValueError
        An argument out of range; `permutations`, or a `scheme` of datasketch.
    """

    def __init__(
        self,
        num_perm: int = 128,
        seed: int = 1,
        gpu_mode: str = "disable",
        hashfunc: Callable[[Any], int] | None = None,
        hashobj: object = None,
        hashvalues: Any = None,
        permutations: Any = None,
        scheme: str | None = None,
    ) -> None:
        if gpu_mode == "always":
            raise RuntimeError("gpu_mode='always': these kernels are for processors")
        if permutations is not None or scheme not in (None, SCHEME):
            raise ValueError(
                "permutations and schemes are datasketch's own, whose hash values differ from "
                "these: make the MinHash of the values again"
            )
        if hashfunc is not None and not callable(hashfunc):
            raise ValueError("The hashfunc must be a callable.")
        given = None
        if hashvalues is not None:
            given = np.asarray(hashvalues)
            if given.ndim != 1 or given.dtype != np.uint32:
                raise ValueError(
                    f"hashvalues: expected uint32[n] of digest(), got {given.dtype}{given.shape}"
                )
            num_perm = len(given)
        if not 1 <= num_perm < 1 << 32:
            raise ValueError(f"num_perm must be 1 to 2**32 - 1, got {num_perm}")
        self.seed, self.num_perm, self.hashfunc, self.scheme = seed, num_perm, hashfunc, SCHEME
        self._bins = SetBins(num_perm, seed)
        self._is_whole = given is None
        if given is not None:
            self._bins.values[:] = given

    def update(self, b: Any) -> None:
        """Add a value.  TypeError: without `hashfunc` it has to be bytes."""
        self._check_whole()
        if self.hashfunc is None:
            self._bins.put(b)
        else:
            self._bins.put_hashes(self._hashes([b]))

    def update_batch(self, b: Iterable[Any]) -> None:
        """Add values; many at once take a tenth of the time."""
        self._check_whole()
        if self.hashfunc is None:
            self._bins.put_each(b)
        else:
            self._bins.put_hashes(self._hashes(b))

    def _hashes(self, values: Iterable[Any]) -> NDArray[np.uint64]:
        assert self.hashfunc is not None
        try:
            return np.array([self.hashfunc(value) for value in values], np.uint64)
        except OverflowError as error:
            raise ValueError(f"hashfunc: expected numbers of 0 to 2**64 - 1: {error}") from error

    def _check_whole(self) -> None:
        if not self._is_whole:
            raise ValueError(
                "a MinHash that was made of hashvalues can be compared and not changed: pickle the "
                "MinHash instead"
            )

    @property
    def hashvalues(self) -> NDArray[np.uint32]:
        """The signature, uint32[num_perm], a copy."""
        return self._bins.filled()

    def digest(self) -> NDArray[np.uint32]:
        """Return the signature, uint32[num_perm]."""
        return self._bins.filled()

    def jaccard(self, other: MinHash) -> float:
        """Estimate the Jaccard similarity of two sets; of two empty ones it is 1."""
        self._check_alike(other)
        return float(np.count_nonzero(self.hashvalues == other.hashvalues)) / self.num_perm

    def count(self) -> float:
        """Estimate how many different values the set has, within 1 / sqrt(num_perm) or so."""
        least = self._bins.values.astype(np.float64) / EMPTY
        full = np.count_nonzero(self._bins.values != EMPTY)
        # The bins' least values are exponential, and cut off at 1: the most likely rate of a bin.
        return float(self.num_perm * full / least.sum())

    def merge(self, other: MinHash) -> None:
        """Become the union of both sets."""
        self._check_alike(other)
        self._check_whole()
        other._check_whole()
        np.minimum(self._bins.values, other._bins.values, out=self._bins.values)

    def _check_alike(self, other: MinHash) -> None:
        if not isinstance(other, MinHash):
            raise TypeError(
                f"expected a MinHash of snailps.datasketch, got {type(other).__module__}."
                f"{type(other).__name__}: make both with one package"
            )
        if other.seed != self.seed:
            raise ValueError("MinHash with different seeds cannot be compared or merged")
        if len(self) != len(other):
            raise ValueError(
                "MinHash with different numbers of permutation functions cannot be compared or "
                "merged"
            )

    def is_empty(self) -> bool:
        """Whether no value was added."""
        return not (self._bins.values != EMPTY).any()

    def clear(self) -> None:
        """Become the empty set."""
        self._bins.values[:] = EMPTY
        self._is_whole = True

    def copy(self) -> MinHash:
        made = MinHash(self.num_perm, self.seed, hashfunc=self.hashfunc)
        made._bins.values[:] = self._bins.values
        made._is_whole = self._is_whole
        return made

    def __len__(self) -> int:
        return self.num_perm

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, MinHash)
            and self.seed == other.seed
            and np.array_equal(self.hashvalues, other.hashvalues)
        )

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __getstate__(self) -> dict[str, Any]:
        return {
            "num_perm": self.num_perm, "seed": self.seed, "hashfunc": self.hashfunc,
            "bins": self._bins.values, "is_whole": self._is_whole,
        }  # fmt: skip

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["num_perm"], state["seed"], hashfunc=state["hashfunc"])  # type: ignore[misc]
        self._bins.values[:] = state["bins"]
        self._is_whole = state["is_whole"]

    @classmethod
    def union(cls, *mhs: MinHash) -> MinHash:
        """Return the union of two sets or more."""
        if len(mhs) < 2:
            raise ValueError("Cannot union less than 2 MinHash")
        made = mhs[0].copy()
        for other in mhs[1:]:
            made.merge(other)
        return made

    @classmethod
    def bulk(cls, b: Iterable[Iterable[Any]], **minhash_kwargs: Any) -> list[MinHash]:
        """Return a MinHash for each iterable of values."""
        return list(cls.generator(b, **minhash_kwargs))

    @classmethod
    def generator(cls, b: Iterable[Iterable[Any]], **minhash_kwargs: Any) -> Iterator[MinHash]:
        """Yield a MinHash for each iterable of values."""
        empty = cls(**minhash_kwargs)
        for values in b:
            made = empty.copy()
            made.update_batch(values)
            yield made


@lru_cache(maxsize=256)
def optimal_bands(
    threshold: float, num_perm: int, of_false: float, of_missed: float
) -> tuple[int, int]:
    """Bands and rows whose weighed areas of error are least: of pairs below the threshold that
    meet, and of those above it that do not, as datasketch chooses them."""
    # Exact for polynomials of the degree that bands times rows can have.
    nodes, weights = np.polynomial.legendre.leggauss(num_perm // 2 + 1)

    def area(low: float, high: float, bands: int, rows: int, met: bool) -> float:
        shares = (nodes + 1) / 2 * (high - low) + low
        missed = (1 - shares**rows) ** bands
        return float((weights * (1 - missed if met else missed)).sum() * (high - low) / 2)

    def error(bands: int, rows: int) -> float:
        false = area(0.0, threshold, bands, rows, met=True)
        return of_false * false + of_missed * area(threshold, 1.0, bands, rows, met=False)

    choices = [(b, r) for b in range(1, num_perm + 1) for r in range(1, num_perm // b + 1)]
    return min(choices, key=lambda choice: error(*choice))


class MinHashLSH:
    """Sets by parts of their signatures: `query` returns those that share a part, a band.

    A pair with Jaccard similarity s is found with the probability 1 - (1 - s^r)^b.

    Parameters
    ----------
    threshold : float
        Similarity above which pairs are wanted; `b` and `r` are chosen by it.
    num_perm : int
        Length of the signatures.
    weights : pair of float
        What a wrong pair and a missed one cost; their sum is 1.
    params : pair of int, optional
        `b` bands of `r` numbers, in place of the threshold.
    storage_config, prepickle, hashfunc
        Sets are kept in this process: ``{"type": "dict"}`` alone.  `hashfunc` makes shorter bytes
        of a band; `prepickle` changes nothing.

    Raises
    ------
    ValueError
        An argument out of range, or another storage.
    """

    def __init__(
        self,
        threshold: float = 0.9,
        num_perm: int = 128,
        weights: tuple[float, float] = (0.5, 0.5),
        params: tuple[int, int] | None = None,
        storage_config: dict[str, Any] | None = None,
        prepickle: bool | None = None,
        hashfunc: Callable[[bytes], bytes] | None = None,
    ) -> None:
        storage = (storage_config or {"type": "dict"}).get("type")
        if storage != "dict":
            raise ValueError(
                f"storage_config: {storage!r} is not here, sets are kept in this process: use "
                "datasketch for it"
            )
        if not 0.0 <= threshold <= 1.0:
            raise ValueError("threshold must be in [0.0, 1.0]")
        if num_perm < 2:
            raise ValueError("Too few permutation functions")
        if any(not 0.0 <= weight <= 1.0 for weight in weights):
            raise ValueError("Weight must be in [0.0, 1.0]")
        if sum(weights) != 1.0:
            raise ValueError("Weights must sum to 1.0")
        self.h = num_perm
        self.b, self.r = params or optimal_bands(threshold, num_perm, *weights)
        if self.b * self.r > num_perm:
            raise ValueError(
                f"params: {self.b} * {self.r} = {self.b * self.r} numbers, of num_perm {num_perm}: "
                "did you forget to specify num_perm?"
            )
        if self.b < 2:
            raise ValueError("The number of bands are too small (b < 2)")
        self.hashfunc = hashfunc
        self.hashranges = [(band * self.r, (band + 1) * self.r) for band in range(self.b)]
        self.keys: dict[Hashable, list[bytes]] = {}
        self.hashtables: list[dict[bytes, set[Hashable]]] = [{} for _ in range(self.b)]

    def _bands(self, minhash: MinHash) -> list[bytes]:
        if not isinstance(minhash, MinHash):
            raise TypeError(
                f"expected a MinHash of snailps.datasketch, got {type(minhash).__module__}."
                f"{type(minhash).__name__}: make both with one package"
            )
        if len(minhash) != self.h:
            raise ValueError(f"Expecting minhash with length {self.h}, got {len(minhash)}")
        data, size = minhash.hashvalues.tobytes(), 4 * self.r
        bands = [data[at : at + size] for at in range(0, size * self.b, size)]
        return [self.hashfunc(band) for band in bands] if self.hashfunc is not None else bands

    def insert(self, key: Hashable, minhash: MinHash, check_duplication: bool = True) -> None:
        """Add a set under a key.  ValueError: the key is there."""
        if check_duplication and key in self.keys:
            raise ValueError("The given key already exists")
        bands = self._bands(minhash)
        self.keys[key] = bands
        self._put(key, bands)

    def _put(self, key: Hashable, bands: Iterable[bytes]) -> None:
        for band, table in zip(bands, self.hashtables, strict=True):
            if (keys := table.get(band)) is None:
                table[band] = {key}
            else:
                keys.add(key)

    def query(self, minhash: MinHash) -> list[Hashable]:
        """Return the keys of sets that share a band with this one, in no order."""
        met: set[Hashable] = set()
        for band, table in zip(self._bands(minhash), self.hashtables, strict=True):
            met |= table.get(band, set())
        return list(met)

    def merge(self, other: MinHashLSH, check_overlap: bool = False) -> None:
        """Add all sets of another index of the same bands."""
        if not isinstance(other, MinHashLSH):
            raise ValueError(f"Cannot merge type MinHashLSH and type {type(other).__name__}.")
        if (self.h, self.b, self.r) != (other.h, other.b, other.r):
            raise ValueError("Cannot merge MinHashLSH with different initialization parameters.")
        if check_overlap and self.keys.keys() & other.keys.keys():
            raise ValueError("The keys are overlapping, duplicate key exists.")
        for key, bands in other.keys.items():
            self.keys[key] = bands
            self._put(key, bands)

    def __contains__(self, key: Hashable) -> bool:
        return key in self.keys

    def remove(self, key: Hashable) -> None:
        """Remove a set.  ValueError: the key is not there."""
        if key not in self.keys:
            raise ValueError("The given key does not exist")
        for band, table in zip(self.keys.pop(key), self.hashtables, strict=True):
            table[band].discard(key)
            if not table[band]:
                del table[band]

    def is_empty(self) -> bool:
        """Whether no set is there."""
        return not self.keys

    def get_counts(self) -> list[dict[bytes, int]]:
        """Return, by band, how many sets have each of its values."""
        return [{band: len(keys) for band, keys in table.items()} for table in self.hashtables]

    def get_subset_counts(self, *keys: Hashable) -> list[dict[bytes, int]]:
        """Return `get_counts` of some keys alone."""
        counts: list[dict[bytes, int]] = [{} for _ in range(self.b)]
        for key in {*keys} & self.keys.keys():
            for band, table in zip(self.keys[key], counts, strict=True):
                table[band] = table.get(band, 0) + 1
        return counts

    def insertion_session(self, buffer_size: int = 50000) -> Session:
        """Return a context manager with `insert`: there is nothing to buffer."""
        return Session(self)

    def deletion_session(self, buffer_size: int = 50000) -> Session:
        """Return a context manager with `remove`."""
        return Session(self)


class Session:
    """What a script does between ``with`` and its end."""

    def __init__(self, lsh: MinHashLSH) -> None:
        self.insert, self.remove = lsh.insert, lsh.remove

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is left to write."""
