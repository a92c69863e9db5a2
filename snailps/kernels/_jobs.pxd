# Jobs of kernels and the table of a build, for Cython; the C header describes each field.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from snailps.abi._row_ops cimport RowOps
from snailps.abi._wire_types cimport WireOps

cdef extern from "kernels/_jobs.h" nogil:
    const int PAD "SNAIL_PAD"
    const int POINTS "SNAIL_POINTS"
    const int CENTROIDS "SNAIL_CENTROIDS"
    const int GROUP "SNAIL_GROUP"
    const int SHARED "SNAIL_SHARED"
    const int TOGETHER "SNAIL_TOGETHER"
    const int BUNDLE_COPY "SNAIL_BUNDLE_COPY"
    const int PANEL "SNAIL_PANEL"
    const int TOP "SNAIL_TOP"
    enum:
        SOFTMAX "SNAIL_SOFTMAX"
        ONE_VS_ALL "SNAIL_ONE_VS_ALL"
        SAMPLING "SNAIL_SAMPLING"
        HIERARCHICAL "SNAIL_HIERARCHICAL"
    enum:
        MULTINOMIAL "SNAIL_MULTINOMIAL"
        LOSS_NUM "SNAIL_LOSS_NUM"

    enum:
        NO_RELATION "SNAIL_NO_RELATION"
        TRANSLATES "SNAIL_TRANSLATES"
        SCALES "SNAIL_SCALES"
        ROTATES "SNAIL_ROTATES"
        TURNS "SNAIL_TURNS"
    enum:
        BY_PRODUCT "SNAIL_BY_PRODUCT"
        BY_L1 "SNAIL_BY_L1"
        BY_L2 "SNAIL_BY_L2"
        BY_MODULUS "SNAIL_BY_MODULUS"
    enum:
        SELF_ADVERSARIAL "SNAIL_SELF_ADVERSARIAL"
        MARGIN "SNAIL_MARGIN"
        CROSS_ENTROPY "SNAIL_CROSS_ENTROPY"
        PAIRWISE "SNAIL_PAIRWISE"

    ctypedef struct TreePaths "snail_paths":
        const int64_t *ptr
        const int32_t *turns
        const int32_t *top

    ctypedef struct PrivateJob "snail_private_job":
        float *inputs
        int64_t stride
        const int64_t *bag_ptr
        const int32_t *bag_rows
        const float *bag_weights
        int64_t first
        const int32_t *words
        int64_t num

    ctypedef struct WordsJob "snail_words_job":
        float *inputs
        float *outputs
        float *input_squares
        float *output_squares
        const int32_t *tokens
        const int32_t *targets
        const int32_t *target_rows
        const int64_t *bag_ptr
        const int32_t *bag_rows
        const float *bag_weights
        const int32_t *noise
        const float *noise_logit
        int64_t token_num
        int64_t target_num
        uint64_t noise_num
        int64_t stride
        int dim
        int window
        int reach_min
        bint single
        bint own
        bint carry
        float negatives
        float rate_start
        float rate_stop
        float epsilon
        uint64_t stream
        const int32_t *centres
        const int64_t *starts
        const int32_t *contexts
        int64_t bundle_num
        int lanes
        TreePaths paths
        bint copied

    ctypedef struct Window "snail_window":
        int32_t at

    ctypedef struct Contexts "snail_contexts":
        int32_t *words
        int64_t size

    ctypedef struct SortedBundle "snail_sorted_bundle":
        int32_t first
        int32_t centre

    ctypedef struct SortJob "snail_sort_job":
        const int32_t *tokens
        const int32_t *origins
        const uint16_t *inputs
        const uint16_t *outputs
        int64_t token_num
        int64_t word_num
        int64_t input_num
        int part
        int parts
        int window
        int reach_min
        int most
        int run
        uint64_t stream
        const uint32_t *kept
        int32_t *numbers
        int32_t *places
        Window *sorted
        int32_t *first
        int32_t **ends
        int32_t *words
        uint32_t *counts
        int64_t *pairs
        Contexts *split
        SortedBundle *bundles
        int32_t *order
        int32_t *centres
        int64_t *starts
        int32_t *contexts

    ctypedef struct LabelsJob "snail_labels_job":
        float *inputs
        float *outputs
        const int64_t *bag_ptr
        const int32_t *bag_rows
        const int64_t *label_ptr
        const int32_t *labels
        const float *line_weights
        const float *label_weights
        const float *rests
        const int32_t *noise
        uint64_t noise_num
        TreePaths paths
        int64_t label_num
        int64_t stride
        int64_t first
        int64_t last
        bint copied
        int loss
        int negatives
        float rate_start
        float rate_stop
        float lead
        uint64_t stream

    ctypedef struct LabellingJob "snail_labelling_job":
        const void *inputs
        const uint8_t *codes
        const float *centroids
        const uint8_t *norm_codes
        const float *norms
        int part_num
        int part_width
        const float *outputs
        const int32_t *children
        int64_t label_num
        int64_t dim
        int64_t stride
        int loss
        int apart
        float slope
        float shift
        float others
        const int64_t *ptr
        const int32_t *features
        int64_t first
        int64_t last
        int k
        int32_t *best
        float *chances
        float *all
        float *scores
        float *hidden

    ctypedef struct CodebookJob "snail_codebook_job":
        const float *columns
        int64_t point_num
        int64_t stride
        int width
        int rounds
        float *centroids

    ctypedef struct EncodeJob "snail_encode_job":
        const void *rows
        const float *scales
        int64_t dim
        const float *centroids
        int part_num
        int part_width
        uint8_t *codes
        int64_t row_num

    ctypedef struct SparseJob "snail_sparse_job":
        float *rows
        int64_t width
        int64_t weights_num
        const int64_t *ptr
        const int32_t *places
        const float *values
        const int32_t *fields
        const float *labels
        const float *weights
        int64_t bias
        int64_t hot
        int64_t field_num
        int64_t factors
        int64_t first
        int64_t last
        int loss
        int method
        float rate_start
        float rate_stop
        float eps
        float l1
        float l2
        float factor_l2
        float beta

    ctypedef struct TriplesJob "snail_triples_job":
        float *rows
        int64_t width
        int64_t stride
        int64_t dim
        const int32_t *heads
        const int32_t *relations
        const int32_t *tails
        const int32_t *noise
        uint64_t noise_num
        int64_t first
        int64_t last
        int64_t shared
        int64_t negatives
        int relation
        int metric
        int loss
        int method
        int side
        bint normalize
        float margin
        float turn
        float temperature
        float l2
        float eps
        float rate_start
        float rate_stop
        uint64_t stream

    ctypedef struct RatingsJob "snail_ratings_job":
        float *rows
        int64_t width
        int64_t stride
        const int32_t *users
        const int32_t *items
        const float *ratings
        int64_t first
        int64_t last
        int method
        float l2
        float eps
        float rate_start
        float rate_stop

    ctypedef struct SolveJob "snail_solve_job":
        const float *others
        const float *gram
        int64_t stride
        const int64_t *ptr
        const int32_t *places
        const float *weights
        const float *penalties
        float *rows
        int64_t first
        int64_t last
        int steps

    ctypedef struct BestJob "snail_best_job":
        const float *queries
        int64_t dim
        const float *across
        const float *longest
        const int32_t *numbers
        int64_t row_num
        const int64_t *ptr
        const int32_t *without
        int64_t first
        int64_t last
        int64_t top
        int32_t *best
        float *scores

    ctypedef struct Csr "snail_csr":
        int64_t n
        int64_t columns
        int64_t dim
        const int64_t *ptr
        const int32_t *rows
        const float *values

    ctypedef struct Moments "snail_moments":
        float *weights
        float *first
        float *second

    ctypedef struct CbowNet "snail_cbow_net":
        int64_t words
        int64_t width
        int64_t window
        Moments embedding
        float *counts
        Moments output
        double lr
        float beta1
        float beta2
        float eps

    ctypedef struct KernelTable "snail_kernels":
        int lanes
        RowOps rows
        WireOps wire
        int64_t (*words_scratch)(const WordsJob *job) noexcept nogil
        void (*words)(const WordsJob *job, char *scratch, double *loss, int64_t *examples) noexcept nogil
        void (*open_private)(const PrivateJob *job, float *begins) noexcept nogil
        void (*close_private)(const PrivateJob *job, float *begins) noexcept nogil
        int64_t (*number_inputs)(const SortJob *job) noexcept nogil
        int64_t (*find_centres)(const SortJob *job) noexcept nogil
        void (*sort_centres)(const SortJob *job, int64_t centre_num) noexcept nogil
        bint (*split_pairs)(const SortJob *job) noexcept nogil
        int64_t (*count_bundles)(const SortJob *job, int part) noexcept nogil
        void (*order_bundles)(const SortJob *job, int part, int64_t num) noexcept nogil
        int64_t (*pairs_scratch)(const WordsJob *job) noexcept nogil
        void (*pairs)(const WordsJob *job, char *scratch, double *loss, int64_t *examples) noexcept nogil
        int64_t (*labels_scratch)(const LabelsJob *job) noexcept nogil
        void (*labels)(const LabelsJob *job, char *scratch, double *loss,
                       double *weight) noexcept nogil
        int64_t (*labelling_scratch)(const LabellingJob *job) noexcept nogil
        void (*label_lines)(const LabellingJob *job, char *scratch) noexcept nogil
        int64_t (*codebook_scratch)(const CodebookJob *job) noexcept nogil
        void (*codebook)(const CodebookJob *job, char *scratch) noexcept nogil
        int64_t (*encode_scratch)(const EncodeJob *job) noexcept nogil
        void (*encode_rows)(const EncodeJob *job, char *scratch) noexcept nogil
        int64_t (*linear_scratch)(const SparseJob *job) noexcept nogil
        void (*linear)(const SparseJob *job, char *scratch, double *loss, double *weight) noexcept nogil
        void (*linear_scores)(const SparseJob *job, float *scores) noexcept nogil
        int64_t (*fm_scratch)(const SparseJob *job) noexcept nogil
        void (*fm)(const SparseJob *job, char *scratch, double *loss, double *weight) noexcept nogil
        void (*fm_scores)(const SparseJob *job, char *scratch, float *scores) noexcept nogil
        int64_t (*triples_scratch)(const TriplesJob *job) noexcept nogil
        void (*triples)(const TriplesJob *job, char *scratch, double *loss) noexcept nogil
        void (*pair_scores)(int metric, int64_t dim, int64_t stride, const float *queries,
                            int64_t query_num, const float *rows, int64_t row_num,
                            float *out) noexcept nogil
        void (*ratings)(const RatingsJob *job, double *loss) noexcept nogil
        int64_t (*solve_scratch)(const SolveJob *job) noexcept nogil
        void (*solve_rows)(const SolveJob *job, char *scratch, double *loss) noexcept nogil
        void (*add_gram)(const float *rows, int64_t count, int64_t stride, int64_t first,
                         int64_t last, float *room, double *out) noexcept nogil
        int64_t (*best_scratch)() noexcept nogil
        void (*best_products)(const BestJob *job, char *scratch) noexcept nogil
        void (*ftrl_weights)(float *rows, int64_t n, int64_t weights_num, float per_rate,
                             float base, float l1) noexcept nogil
        void (*csr_times_rows)(const Csr *x, const float *table, int64_t stride,
                               float *out) noexcept nogil
        void (*csr_columns)(const Csr *x, int64_t *start, int32_t *examples,
                            float *values) noexcept nogil
        void (*csr_gradient)(const Csr *x, const int64_t *start, const int32_t *examples,
                             const float *values, const float *dz, float *out) noexcept nogil
        int64_t (*cbow_scratch)(int64_t words, int64_t width, int64_t window,
                                int64_t batch) noexcept nogil
        double (*cbow_loss)(const CbowNet *net, const int32_t *windows, int64_t n, int64_t batch,
                            float *scratch) noexcept nogil
        double (*cbow)(const CbowNet *net, const int32_t *windows, int64_t n, int64_t batch,
                       int64_t steps, float *scratch) noexcept nogil
        bint (*in_range)(const int32_t *x, int64_t n, int32_t least, int32_t most) noexcept nogil
        void (*copy_rows)(const float *src, int64_t dim, float *dst, int64_t stride,
                          int64_t n) noexcept nogil
        void (*bag_means)(const float *inputs, int64_t stride, const int64_t *ptr,
                          const int32_t *rows, const float *weights, float *out, int64_t dim,
                          int64_t n) noexcept nogil
        void (*unpack_parts)(const float *packed, float *rows, int64_t dim, int64_t parts,
                             int64_t stride, int64_t n) noexcept nogil
        void (*subtract_parts)(const float *rows, float *packed, int64_t dim, int64_t parts,
                               int64_t stride, int64_t n) noexcept nogil
        void (*add_weighted)(int64_t n, float *to, const float *from_, float weight) noexcept nogil
        void (*score_probe)(const float *x, int64_t n, float *sigmoid, float *loss) noexcept nogil
