"""Types of the compiled kernels; `snailps.kernels` re-exports the build chosen for this CPU."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Keys = NDArray[np.uint64]

GROUP: int
"""Consecutive centre words that are trained together: at most 16."""
SHARED: int
"""Negatives that a group shares, at most: 32."""
PAD: int
"""Row strides are multiples of this many floats: 16, one cache line."""
PANEL: int
"""Words of a panel of output weights: 128."""

class CheckedBags:
    """What `Kernels.checked_bags` returns: bags that are right for a table of so many rows."""

class Kernels:
    """The kernels of one build, from its table, a PyCapsule."""

    def __init__(self, capsule: object) -> None: ...
    @property
    def LANES(self) -> int:
        """float32 lanes of this build's vectors: 4 (base), 8 (avx2), 16 (avx512)."""

    def row_ops(self) -> object:
        """PyCapsule "snailps.row_ops": this build's static `RowOps` (see `abi/_row_ops.h`)."""

    def init_row(self, kind: int, scale: float, seed: int, key: int, dim: int) -> Floats:
        """First weights of a row, float32[dim]: a pure function of its arguments.

        Parameters
        ----------
        kind
            0 zeros; 1 uniform in [-scale, scale); 2 normal, mean 0, standard deviation `scale`;
            3 the same with 0 in column 0.
        seed, key
            uint64; element j takes draw j of the SplitMix64 stream that (seed, key) selects.
        dim
            1 to 65,536.
        """

    def init_rows(self, kind: int, scale: float, seed: int, keys: Keys, out: Floats) -> None:
        """`init_row` of each key, into float32 (n, dim); releases the GIL."""

    def apply_row(self, access: int, hyper: Floats, row: Floats, value: Floats) -> None:
        """`RowOps.apply` of one row, for tests; hyper float32[8], row weights then state."""

    def add_state_row(
        self, access: int, hyper: Floats, row: Floats, delta: Floats, dim: int
    ) -> None:
        """`RowOps.add_state` of one row, for tests."""

    def init_state_row(self, access: int, hyper: Floats, row: Floats, dim: int) -> None:
        """`RowOps.init_state` of one row, for tests."""

    def wire_ops(self) -> object:
        """PyCapsule "snailps.wire_ops": this build's static `WireOps` (see `abi/_wire_types.h`)."""

    def narrow_rows(self, wire: int, rows: Floats) -> Bytes:
        """`WireOps.narrow` of rows float32[n, floats], for tests; uint8[n, row_bytes]."""

    def widen_rows(self, wire: int, packed: Bytes, floats: int) -> Floats:
        """`WireOps.widen` of rows, for tests; exact."""

    def narrow_owing_rows(self, wire: int, rows: Floats, residues: Floats) -> Bytes:
        """`WireOps.narrow_owing` of rows, for tests: ``narrow_rows(wire, rows + residues)``.

        `residues` becomes ``rows + residues - widened``, or 0 where that is not finite.
        """

    def finite_rows(self, wire: int, packed: Bytes, floats: int) -> int:
        """`WireOps.finite` of rows, for tests."""

    def fitting_rows(self, wire: int, rows: Floats) -> int:
        """`WireOps.fitting` of rows float32[n, floats], for tests; they may have gaps."""

    def checked_bags(self, bag_ptr: Longs, bag_rows: Ints, row_num: int) -> CheckedBags:
        """Checks bags as `train_words` and `train_pairs` take them, once for many calls.

        The arrays become read-only.  A call that gets other arrays with it, or a table with fewer
        than `row_num` rows, checks them again.

        Raises
        ------
        ValueError
            They do not fit each other, or a row is none of 0..row_num-1.
        """

    def train_words(
        self,
        inputs: Floats, outputs: Floats, dim: int, tokens: Ints, bag_ptr: Longs | Ints,
        bag_rows: Ints, noise: Ints, noise_logit: Floats, *,
        window: int, negatives: int, lr_start: float, lr_stop: float, seed: int,
        targets: tuple[Ints, Ints] | None = None,
        squares: tuple[Floats, Floats] | None = None, eps: float = 1e-8,
        bags: CheckedBags | None = None,
    ) -> tuple[float, int]:  # fmt: skip
        """Train CBOW word vectors on `tokens`, in place; returns (loss_sum, examples).

        Skip-gram: `sort_pairs` and `train_pairs`.

        Parameters
        ----------
        inputs, outputs
            float32[n_in, stride] and float32[n_out, stride], from `snailps.kernels.padded`; the
            columns from `dim` on are zero and stay zero.  Row w of `outputs` is the output vector
            of word w; rows from `n_words` on belong to words that only occur as noise.
        dim
            Columns in use, 1 to stride.
        tokens
            int32[m], word numbers 0..n_words-1, -1 ends a sentence; already subsampled.
        bag_ptr, bag_rows
            Row numbers of `inputs` that make up word w: ``bag_rows[bag_ptr[w]:bag_ptr[w + 1]]``
            (its own row and those of its subwords; at least one).
            int64[n_words + 1] (int32 is accepted and copied), int32[bag_ptr[-1]].
        noise
            int32[p], p >= 1: rows of `outputs`, drawn beforehand from the noise distribution;
            the kernel picks from it uniformly.
        noise_logit
            float32[n_out], subtracted from each score: ``log(negatives * q(w))`` for NCE; empty
            for negative sampling: zeros.
        window
            1 to 256: each centre draws its reach uniformly from 1..window.
        negatives
            1 or more: noise words for each positive example.
        lr_start, lr_stop
            Learning rate at the first and after the last token; linear between.
        seed
            uint64; the same seed, tokens and rows give the same result (one thread, same build).
            With `squares` also the same maker of the processor, unless the build is base: the
            others begin with estimates of a root and a reciprocal, of which only the error is
            specified.
        targets
            Two arrays int32[t]: places in `tokens` of the centres to train, in the order of
            training, none a sentence end, and the row of `outputs` of each.  All tokens are
            contexts.  The rate runs from the first target to the last one.  None: all words, in
            the order of the text.
        squares
            For AdaGrad: sums of squared gradients so far, of the shapes of `inputs` and `outputs`,
            changed as they are.  A group of 16 centres makes one gradient of a row each time that
            it has that row in it.
        eps
            AdaGrad's, above 0: added to the root of these sums.
        bags
            What `checked_bags` returned for `bag_ptr` and `bag_rows`: they are not checked again.

        Returns
        -------
        loss_sum : float
            Sum over the examples of the negative log likelihood, each with its negatives.
        examples : int
            Centres with any context.

        Raises
        ------
        ValueError
            Shapes, strides or alignment that do not fit, a number out of range.

        Notes
        -----
        16 consecutive centres share 32 noise words, each weighted ``negatives / 32``; a noise word
        that is the centre does not count for it.  A group reads every row before it changes any, so
        it is one small batch; it ends early where a centre would come a second time, because one
        word taking several steps at once overshoots.  As in fastText, a bag's vector is the mean of
        its rows, and each of the rows gets the whole gradient.

        Releases the GIL.  Several threads may train on the same `inputs` and `outputs` at once:
        the writers race (Hogwild), an update may now and then be lost, nothing else happens.
        Scratch is taken once a call, about 50 kB; `tokens`, `noise` and, without `bags`, `bag_rows`
        are read once more, to check them.

        References
        ----------
        T. Mikolov et al., "Distributed representations of words and phrases and their
        compositionality", NIPS 2013 (negative sampling).  A. Mnih, Y. W. Teh, "A fast and simple
        algorithm for training neural probabilistic language models", ICML 2012 (NCE).
        P. Bojanowski et al., "Enriching word vectors with subword information", TACL 2017.
        S. Ji et al., "Parallelizing word2vec in shared and distributed memory", 2016 (shared
        negatives).
        B. Recht et al., "Hogwild!", NIPS 2011.
        """

    def sort_pairs(
        self, tokens: Ints, window: int, seed: int, most: int = 12, *, run: int = 1,
        resident: NDArray[np.integer] | None = None, part: int = 0,
        visiting: NDArray[np.integer] | None = None, parts: int = 1,
        without: Sequence[int] = (), pairs: Longs | None = None,
    ) -> tuple[Ints, Longs, Ints, Longs]:  # fmt: skip
        """Sort the skip-gram pairs of a text into bundles: a centre word and a few of its contexts.

        Parameters
        ----------
        tokens
            int32[m], word numbers, m below 2^31; -1 ends a sentence; already subsampled.
        window
            1 to 256: each centre draws its reach uniformly from 1..window.
        seed
            uint64.  A reach depends on the seed and the place in `tokens` alone, so that all parts
            of a text see the same windows.
        most
            1 or more contexts of a bundle at most.  The pairs of a centre are cut into as few
            bundles as can be, of sizes as equal as can be.
        run
            1 to 1024: so many bundles of a centre at most follow each other, 16 centres side by
            side.  `train_pairs` reads and writes the bag of a centre once a run.
        resident, part
            Part of each word as a centre, below 65,536: only centres of part `part` are taken.
            None: all are.  Arrays of uint16 are not copied.
        visiting, parts
            Part of each word as a context, below `parts`.  None: there is one part.
        without
            Visiting parts whose pairs are left out; those of the others, and their order, are the
            same without them.
        pairs
            int64[parts], set to the pairs of each visiting part, left out or not.

        Returns
        -------
        centres : int32[b]
            Word of each bundle.
        starts : int64[b + 1]
            The contexts of bundle i are ``contexts[starts[i]:starts[i + 1]]``: one or more.
        contexts : int32[pairs]
        bounds : int64[parts + 1]
            The contexts of bundles ``bounds[j]`` to ``bounds[j + 1] - 1`` are in visiting part j.
            Inside a part the runs are in a random order, one of `seed` and the part.

        Raises
        ------
        ValueError
            Numbers out of range, or 2^31 pairs or more.

        Notes
        -----
        Releases the GIL.  A counting sort: time is linear in the words (some ns for each that is of
        another part) and the pairs; besides what it returns, memory is 4 bytes a word of the text,
        4 a pair, 16 a bundle, and 4 a resident word and visiting part.
        """

    def train_pairs(
        self,
        inputs: Floats, outputs: Floats, dim: int, centres: Ints, starts: Longs, contexts: Ints,
        bag_ptr: Longs, bag_rows: Ints, noise: Ints, noise_logit: Floats, *,
        negatives: int, lr_start: float, lr_stop: float, seed: int,
        squares: tuple[Floats, Floats] | None = None, eps: float = 1.0,
        bags: CheckedBags | None = None,
    ) -> tuple[float, int]:  # fmt: skip
        """Train skip-gram word vectors on sorted pairs, in place; returns (loss_sum, pairs).

        Parameters
        ----------
        inputs, outputs, dim, bag_ptr, bag_rows, noise, noise_logit, squares, bags
            As `train_words` takes them.
        centres, starts, contexts
            Bundles, as `sort_pairs` returns them.  ``centres[a:b], starts[a:b + 1]`` are a range of
            them, with all of `contexts`.  Centres have a bag; contexts are rows of `outputs`: a
            caller may number the words of either side as its rows are.
        negatives
            1 or more: noise words for each pair.
        lr_start, lr_stop
            Learning rate at the first and behind the last bundle; linear between.
        seed
            uint64; the same seed, bundles and rows give the same result, as with `train_words`.
        eps
            AdaGrad's, above 0: added to the root of the sums.

        Returns
        -------
        loss_sum : float
            Sum over the pairs of the negative log likelihood, each with its negatives.
        pairs : int

        Raises
        ------
        ValueError
            Shapes, strides or alignment that do not fit, a number out of range.

        Notes
        -----
        16 bundles in a row share 32 noise words, each weighted ``contexts * negatives / 32``; a
        noise word that is the context of a pair does not count for that pair.  A group of 16 reads
        the hidden vectors of its centres, makes one step of each noise row, then takes bundle by
        bundle: one step a context, in turn, then one of each row of the centre's bag.  It ends
        early where a centre would come a second time.

        Releases the GIL.  Several threads may train on the same `inputs` and `outputs` at once
        (Hogwild), see `train_words`.
        """

    def train_labels(
        self,
        inputs: Floats, outputs: Floats, dim: int, bag_ptr: Longs, bag_rows: Ints,
        label_ptr: Longs, labels: Ints, noise: Ints, *,
        loss: int, negatives: int, shared: bool, lr_start: float, lr_stop: float, seed: int,
        first: int, last: int,
    ) -> tuple[float, int]:  # fmt: skip
        """Train a linear classifier on mean vectors, one pass over lines `first` to `last - 1`.

        Parameters
        ----------
        inputs, outputs
            float32[n, stride] and float32[labels, stride] from `snailps.kernels.padded`, changed in
            place; columns from `dim` on must be zero and stay so.
        bag_ptr, bag_rows
            Line i has the features ``bag_rows[bag_ptr[i]:bag_ptr[i + 1]]``, rows of `inputs`.
        label_ptr, labels
            Its labels likewise, rows of `outputs`.  Lines without features or labels are passed
            over.
        noise
            Labels that negatives are drawn from, uniformly; only for loss 2.
        loss
            0 softmax; 1 one-versus-all; 2 negative sampling.  For 0 and 2 a line of several labels
            is trained on one of them, drawn at random.
        negatives
            Negatives a line; a draw that is the line's own label is repeated, up to 8 times.
        shared
            Other threads train on the same arrays: output rows are exchanged every 64 lines.
        lr_start, lr_stop
            Learning rate at the first feature and behind the last one.
        seed
            uint64 that names the random numbers.

        Returns
        -------
        loss : float
            Sum over lines.
        examples : int
            Lines trained on.

        Notes
        -----
        Releases the GIL; racing writers are allowed (Hogwild).  Scratch: with `shared` two copies
        of `outputs`.  Time a line: (2 x features + 3 x labels) row visits.

        References
        ----------
        A. Joulin et al., "Bag of tricks for efficient text classification", EACL 2017.
        """

    def copy_rows(self, src: Floats, dst: Floats) -> None:
        """``dst[i, :dim] = src[i]``, zeros behind; src float32[n, dim], dst float32[n, stride]."""

    def bag_means(self, inputs: Floats, bag_ptr: Longs | Ints, bag_rows: Ints, out: Floats) -> None:
        """``out[w] = mean of inputs[bag_rows[bag_ptr[w]:bag_ptr[w + 1]], :dim]``: a word's vector.

        inputs float32[n, stride], out float32[k, dim].  An empty bag gives zeros.
        """

    def score_probe(self, x: Floats) -> tuple[Floats, Floats]:
        """The kernel's sigmoid and -log(sigmoid) of float32[n], for tests of their stated error."""

    def train_linear(
        self,
        rows: Floats, ptr: Longs, places: Ints, values: Floats, labels: Floats, weights: Floats, *,
        outputs: int, loss: int, method: int, bias: int, hot: int, lr_start: float, lr_stop: float,
        eps: float, l1: float, l2: float, beta: float, first: int, last: int,
        order: NDArray[np.uint32] | None = None,
    ) -> tuple[float, float]:  # fmt: skip
        """Train a generalised linear model, one step after each of examples `first` to `last - 1`.

        Parameters
        ----------
        rows
            float32[n, outputs + state], each as the store keeps it: weights, then the state of
            `method`; changed in place.
        ptr, places, values
            Example i has the values ``values[ptr[i]:ptr[i + 1]]`` in the rows `places` likewise.
        labels
            float32[examples]: loss 0, above 0 for yes; 1, a real number; 2, a class number.
        weights
            float32[examples], 0 or more: what an example counts; empty: 1 each.
        outputs
            1; for loss 2 the number of classes.
        loss
            0 logistic, 1 squared (half of it), 2 multinomial.
        method
            1 sgd, 2 adagrad, 4 ftrl: as `api.tables.Table` knows them.
        bias
            Row of a feature that every example has with value 1, or -1.
        hot
            Other threads train on the same rows: of the first `hot` rows and the bias each thread
            trains a copy, and adds its differences every 256 examples.  0: this is the only thread.
        lr_start, lr_stop
            Step size before the first example and behind the last one, above 0.  FTRL's alpha
            should not change: its weights follow from it.
        eps
            AdaGrad's, beside the root.
        l1, l2
            FTRL's penalties.  With the others `l2` times the weight is added to the gradient of
            each feature that an example has, and `l1` does nothing.
        beta
            FTRL's.
        order
            uint32[examples], numbers of examples in the order in which they are trained; `first`
            to `last - 1` then are places in it.  `places` and `fields` are checked as they come:
            before a wrong one is told the examples in front of it have been trained.

        Returns
        -------
        loss, weight
            Sums over the examples, each taken before its own step: the progressive loss.

        Notes
        -----
        Releases the GIL.  Writers may race (Hogwild).  About 5 ns a feature with FTRL.

        References
        ----------
        H. B. McMahan et al., "Ad click prediction: a view from the trenches", KDD 2013.
        """

    def linear_scores(
        self, rows: Floats, ptr: Longs, places: Ints, values: Floats, *, outputs: int, bias: int
    ) -> Floats:
        """Scores of all examples: float32[examples, outputs], products of values and weights.

        `rows` may be wider than `outputs`; the other parameters are those of `train_linear`.
        """

    def ftrl_weights(
        self, rows: Floats, *, outputs: int, lr: float, l1: float, beta: float
    ) -> None:
        """Weights of rows float32[n, 3 * outputs] from FTRL's z and n behind them, in place.

        For rows that differences were added to.  Releases the GIL.
        """

    def train_fm(
        self,
        rows: Floats, ptr: Longs, places: Ints, values: Floats, fields: Ints, labels: Floats,
        weights: Floats, *,
        factors: int, field_num: int, loss: int, method: int, bias: int, hot: int,
        lr_start: float, lr_stop: float, eps: float, l1: float, l2: float, factor_l2: float,
        beta: float, first: int, last: int, order: NDArray[np.uint32] | None = None,
    ) -> tuple[float, float]:  # fmt: skip
        """Train a factorization machine, one step after each of examples `first` to `last - 1`.

        Parameters
        ----------
        rows
            float32[n, parts * stride], 64-byte aligned (see `kernels.padded`), changed in place: a
            part of weights, then the state of `method` (adagrad: 1 part, ftrl: 2).  A part is w,
            then `factors` numbers for each field, then zeros up to `stride`, the next multiple of
            16.
        ptr, places, values
            Example i has the values ``values[ptr[i]:ptr[i + 1]]`` in the rows `places` likewise.
        fields
            Field of each value, 0 to ``field_num - 1``; empty is allowed where `field_num` is 1.
        labels
            float32[examples]: loss 0, above 0 for yes; 1, a real number.
        weights
            float32[examples], 0 or more: what an example counts; empty: 1 each.
        factors
            Length of a factor, k.
        field_num
            1: the plain machine.  More: field-aware, a row has a factor for each field it may meet.
        loss
            0 logistic, 1 squared (half of it).
        method
            1 sgd, 2 adagrad, 4 ftrl.
        bias
            Row of a feature that every example has with value 1, or -1.  Only its w counts.
        hot
            Other threads train on the same rows: of the first `hot` rows and the bias each thread
            trains a copy, and adds its differences every 256 examples.  0: this is the only thread.
        lr_start, lr_stop
            Step size before the first example and behind the last one; changed every 256 examples.
        eps
            AdaGrad's, beside the root.
        l1
            FTRL's, of all columns; the others have none.
        l2
            Times w is added to its gradient, in each feature that an example has.
        factor_l2
            The same for factors, where they have a gradient.
        beta
            FTRL's.
        order
            uint32[examples], numbers of examples in the order in which they are trained; `first`
            to `last - 1` then are places in it.  `places` and `fields` are checked as they come:
            before a wrong one is told the examples in front of it have been trained.

        Returns
        -------
        loss, weight
            Sums over the examples, each taken before its own step: the progressive loss.

        Notes
        -----
        Releases the GIL.  Writers may race (Hogwild).  Time an example: two visits of each of its
        rows, of ``1 + factors * field_num`` columns, whatever the number of pairs.

        References
        ----------
        S. Rendle, "Factorization machines", ICDM 2010.  Y. Juan et al., "Field-aware factorization
        machines for CTR prediction", RecSys 2016.
        """

    def fm_scores(
        self,
        rows: Floats, ptr: Longs, places: Ints, values: Floats, fields: Ints, *,
        factors: int, field_num: int, bias: int,
    ) -> Floats:  # fmt: skip
        """Scores of all examples, float32[examples].

        `rows` may have any number of parts; all parameters are those of `train_fm`.
        """

    def unpack_parts(self, packed: Floats, rows: Floats, dim: int, parts: int) -> None:
        """Rows as the store has them to rows as `train_fm` wants them.

        packed float32[n, parts * dim], rows float32[n, parts * stride]: each part is followed by
        zeros. Releases the GIL; threads may work on different row ranges (slices) at once.
        """

    def subtract_parts(self, rows: Floats, packed: Floats, dim: int, parts: int) -> None:
        """``packed = rows - packed``, part by part, without what pads `rows`.

        Shapes as in `unpack_parts`.  Releases the GIL; threads may work on different row ranges.
        """

    def train_triples(
        self, rows: Floats, dim: int, heads: Ints, relations: Ints, tails: Ints, noise: Ints, *,
        relation: int, metric: int, loss: int, method: int, shared: int, negatives: int, side: int,
        normalize: bool, margin: float, temperature: float, l2: float, eps: float,
        lr_start: float, lr_stop: float, seed: int, first: int, last: int, turn: float = 1,
    ) -> float:  # fmt: skip
        """Trains embeddings of triples on sampled negatives, in place; the sum of their losses.

        Parameters
        ----------
        rows
            float32 (n, stride), with AdaGrad (n, 2 stride), of `padded`: entities and relations,
            `dim` columns in use, state behind them.  Complex numbers are dim / 2 real parts, then
            dim / 2 imaginary ones.  Writers may race.
        dim
        heads, relations, tails
            int32 (m,): places of rows; no relations for pairs (`relation` 0).
        noise
            int32: places that negatives are drawn from.
        relation
            What it does to the end that stays: 0 nothing, 1 is added (TransE), 2 scales (DistMult),
            3 is multiplied as complex numbers (ComplEx), 4 turns by dim / 2 phases (RotatE).
        metric
            Score of a candidate: 0 inner product, 1 and 2 negative distance L1 and L2, 3 negative
            sum of the moduli of complex differences.
        loss
            0 logistic with `margin` and `temperature` of self-adversarial weights (0: all alike), 1
            hinge with `margin`, 2 cross entropy among the candidates, 3 logistic of differences
            (BPR).  Negatives weigh 1 together.
        method
            1 plain steps, 2 AdaGrad.
        shared
            Triples that share their `negatives`, 1 to 64.
        side
            Which end negatives replace: 1 tails, -1 heads, 0 either, drawn for each group.
        normalize
            Entities are made unit vectors by each step.
        l2
            Of rows of the triples, not of negatives.
        lr_start, lr_stop
            Rates at the first and behind the last triple.
        first, last
            Trains triples from `first` to before `last`.
        turn
            Radians of a phase of 1 (`relation` 4).
        """

    def pair_scores(self, queries: Floats, rows: Floats, *, metric: int, dim: int) -> Floats:
        """Scores of queries (b, stride) and rows (n, stride), as in `train_triples`: (b, n)."""

    def train_ratings(
        self, rows: Floats, dim: int, users: Ints, items: Ints, ratings: Floats, *, method: int,
        l2: float, eps: float, lr_start: float, lr_stop: float, first: int, last: int,
    ) -> float:  # fmt: skip
        """Trains a biased matrix factorisation, in place; half the sum of squared errors.

        Rows are those of `train_triples`, column 0 a bias: a rating is both biases and the
        inner product of the other columns.  `users` and `items` are places of different rows.
        """

    def csr_product(
        self, ptr: Longs, rows: Ints, values: Floats, table: Floats, out: Floats
    ) -> None:
        """``out[i] = sum of values[k] * table[rows[k]], k in ptr[i]..ptr[i + 1] - 1``.

        The product of a sparse matrix (CSR, an example a row) with dense rows: a first layer.

        Parameters
        ----------
        ptr, rows, values
            int64[m + 1], int32[nnz] in 0..n-1, float32[nnz].
        table
            float32[n, dim], rows contiguous, their stride free.
        out
            float32[m, dim], written.

        Raises
        ------
        ValueError
            Shapes that do not fit, or a row outside of the table.

        Notes
        -----
        Releases the GIL.  Terms are added in their order.
        """

    def csr_gradients(
        self, ptr: Longs, rows: Ints, values: Floats, dz: Floats, out: Floats
    ) -> None:
        """``out[j] = sum of values[k] * dz[i]`` over the entries k of all examples i with rows[k] =
        j.

        The transpose of `csr_product`: gradients of the table's rows from those of the first
        layer's outputs, dz float32[m, dim], out float32[n, dim] (written).  Releases the GIL;
        scratch of 16 bytes an entry.
        """

    def cbow_scratch_floats(self, words: int, width: int, window: int, batch: int) -> int:
        """Floats of scratch that `train_cbow` and `cbow_loss` need for batches of up to `batch`.

        About ``words * batch``: the exponentials of a whole batch are kept.
        """

    def cbow_loss(
        self, windows: Ints, embedding: Floats, output: Floats, scratch: Floats, *, batch: int
    ) -> float:
        """Sum of the losses (natural logarithms) of windows under a network.

        Parameters
        ----------
        windows
            int32[n, window], window odd: the middle word is the target, the others its context.
        embedding
            float32[words, width], width a multiple of `PAD`.
        output
            float32[panels, width + 1, PANEL]: panel p has the words from ``p * PANEL`` on; its row
            d has the d-th weight of each, its last row their biases.  Places of no word are not
            read.
        scratch
            float32, at least `cbow_scratch_floats`; what it holds means nothing.
        batch
            Windows scored together.

        Raises
        ------
        ValueError
            Shapes that do not fit, or a word outside of the embedding.

        Notes
        -----
        Releases the GIL.  Sums run in a fixed order.
        """

    def train_cbow(
        self,
        windows: Ints, embedding: Floats, counts: Floats, output: Floats, scratch: Floats, *,
        batch: int, steps: int, lr: float, beta1: float, beta2: float, eps: float,
    ) -> float:  # fmt: skip
        """Steps of Adam on a CBOW network with a full softmax, in place: one a batch, in order.

        The hidden vector is the mean of the context's rows, the loss of a batch the mean of its
        windows'.  Of the embedding only the rows that a batch touched step (`counts` of their own);
        the output weights all step every time.

        Parameters
        ----------
        windows
            int32[n, window]; each `batch` rows are a batch, the last one may be shorter.
        embedding
            float32[3, words, width]: weights, first and second moments.  Columns of zeros stay
            zero.
        counts
            float32[words]: steps that each row has taken, exact up to 2^24.
        output
            float32[3, panels, width + 1, PANEL], as in `cbow_loss`.
        scratch
            As in `cbow_loss`.
        batch
            Windows in a batch.
        steps
            Steps that the output weights have taken.
        lr, beta1, beta2, eps
            Of Adam, as the access method has it (docs/access_methods.md).

        Returns
        -------
        float
            Sum of the windows' losses, each before the step of its batch.

        Raises
        ------
        ValueError
            Shapes that do not fit, a word outside of the embedding, or numbers out of range.

        Notes
        -----
        Releases the GIL and allocates nothing.  Sums run in a fixed order: equal input, equal bits,
        in one build.  Time a batch: three products of ``batch x width x words`` and a walk over the
        output weights with their moments.

        References
        ----------
        T. Mikolov et al., "Efficient estimation of word representations in vector space", 2013.
        D. P. Kingma, J. Ba, "Adam: a method for stochastic optimization", ICLR 2015.
        """

    def add_weighted_rows(self, rows: Floats, weights: Floats, out: Floats) -> None:
        """``out[i] += weights[i] * rows[i]``; rows of weight 0 are not read.

        float32[n, dim], float32[n], float32[n, dim].  Releases the GIL; threads may work on
        different row ranges (slices) at once.
        """
