/* The arguments of each kernel (its job), and the table of kernels that a build exports.
 *
 * snailps/_kernels.pyx, compiled once, checks all bounds and fills a job; a build (_build.pyx, compiled
 * once per instruction set) runs it without further checks.  Both include this header, so nothing here
 * depends on the width of a vector.
 *
 * A kernel writes the rows that it trains and the arrays for results, nothing else.  Threads that run
 * parts of one call (first..last) share the rows, and write them without locks unless the kernel's header
 * says otherwise.
 *
 * If a kernel needs scratch, the table has a function for its size beside it.  The caller allocates it,
 * aligned to 64 bytes and filled with zeros, one for each thread.
 */
#ifndef SNAILPS_JOBS_H
#define SNAILPS_JOBS_H

#include <stdint.h>

#include "../abi/_row_ops.h"
#include "../abi/_wire_types.h"

#define SNAIL_PAD 16      /* floats in a cache line: strides are multiples of it */
#define SNAIL_POINTS 64   /* points whose centroids are sought together */
#define SNAIL_CENTROIDS 256 /* of a codebook: a code is a byte */
#define SNAIL_GROUP 16    /* centre words trained together, one a lane: the widest vector register */
#define SNAIL_SHARED 32   /* most noise words of a group */
#define SNAIL_TOGETHER 64 /* lines of text between two exchanges of hot label rows */
#define SNAIL_BUNDLE_COPY 16 /* contexts that the sorter copies at once; it may write past the end by as many */
#define SNAIL_TOP 63      /* nodes of the upper levels of a tree: 2^levels - 1 */
#define SNAIL_PANEL 128   /* words of a panel: 33 rows of them are 17 KB, half of an L1 cache */

enum { SNAIL_SOFTMAX, SNAIL_ONE_VS_ALL, SNAIL_SAMPLING, SNAIL_HIERARCHICAL };
enum { SNAIL_LOGISTIC, SNAIL_SQUARED, SNAIL_MULTINOMIAL, SNAIL_POISSON, SNAIL_LOSS_NUM };

typedef struct { /* of each leaf of a tree: the inner nodes from the root down, and the side to go to */
    const int64_t *ptr;   /* NULL: there is no tree */
    const int32_t *turns; /* 2 x row of the node, and 1 if the right child is next */
    const int32_t *top;   /* [SNAIL_TOP] rows of the top nodes, numbered as in a heap; -1: no such node */
} snail_tree_paths;

typedef struct {          /* word vectors: CBOW on a text, or skip-gram on sorted pairs */
    float *inputs, *outputs;
    float *input_squares; /* AdaGrad's state beside them, or NULL: plain steps */
    float *output_squares;
    const int64_t *bag_ptr;
    const int32_t *bag_rows;
    const float *bag_weights; /* how many rows each entry stands for, or NULL: one */
    const int32_t *noise;
    const float *noise_logit; /* of each row of `outputs`, or NULL: zeros */
    uint64_t noise_num;
    int64_t stride;
    int dim;
    float negatives;
    float rate_start, rate_stop;
    float epsilon;
    uint64_t stream; /* start of this call's SplitMix64 stream */
    /* of a text */
    const int32_t *tokens;
    const int32_t *targets;     /* places of the centres, or NULL: all tokens */
    const int32_t *target_rows; /* of `outputs`, of each target */
    int64_t token_num;
    int64_t target_num;
    int window;
    int reach_min; /* each centre draws its reach from here to the window */
    int single; /* whether each bag is a single row, number bag_rows[word] */
    int own;    /* whether that row is the word's own: bag_rows need not be read */
    int carry;  /* whether a slot that the next group has, too, goes on there; not with squares */
    /* of pairs */
    const int32_t *centres;  /* of each bundle */
    const int64_t *starts;   /* of each bundle's contexts, and the end of the last one's */
    const int32_t *contexts;
    int64_t bundle_num;
    int lanes; /* bundles of a group at most */
    /* with a tree in the place of noise: contexts and target rows are leaves */
    snail_tree_paths paths;
    int copied; /* whether this thread trains copies of the top nodes: others write them, too */
    int narrow; /* whether products with noise rows are of bfloat16 (_narrow_products.h), where there are any */
} snail_words_job;

typedef struct {          /* private rows, each of which stands for a part of a word's bag for a while */
    float *inputs;
    int64_t stride;
    const int64_t *bag_ptr; /* that part, of each word */
    const int32_t *bag_rows;
    const float *bag_weights; /* or NULL: one */
    int64_t first;            /* the private row of word w is row first + w */
    const int32_t *words;
    int64_t num;
} snail_private_job;

typedef struct { /* a place in a text, and how many contexts it has to each side */
    int32_t at;
    uint16_t left, right;
} snail_window;

typedef struct { /* contexts of an output partition, by centre word */
    int32_t *words; /* allocated, with BUNDLE_COPY more */
    int64_t size, room;
} snail_contexts;

typedef struct { /* a bundle before the order is drawn; ends where the next one begins */
    int32_t first;  /* of its contexts, among those of the part */
    int32_t centre; /* word */
} snail_sorted_bundle;

typedef struct { /* skip-gram pairs of a text, to be sorted */
    const int32_t *tokens;    /* fewer than 2^31; -1 between sentences */
    const int32_t *origins;   /* place of each in the text; NULL: they are the text */
    const uint16_t *inputs;   /* part of each word as a centre, or NULL: all are of this part */
    const uint16_t *outputs;  /* part of each word as a context; NULL if there is one part */
    int64_t token_num;
    int64_t word_num;
    int64_t input_num; /* words of this part */
    int part;
    int parts; /* output partitions */
    int window;
    int reach_min;
    int most; /* contexts of a bundle */
    int run;  /* bundles of a word that are trained in successive groups */
    uint64_t stream;
    const uint32_t *kept;         /* [parts] 1, or 0: the pairs of this part are left out */
    int32_t *numbers;             /* scratch: [word_num] in the input partition */
    int32_t *places;              /* scratch: [token_num] of centres, in the order of the text */
    snail_window *sorted;         /* scratch: [centres] these by word */
    int32_t *first;               /* scratch: [inputs + 1] of each word there */
    int32_t **ends;               /* scratch: [parts] of `split`, with the word at work */
    int32_t *words;               /* [word_num + 1] of each number */
    uint32_t *counts;             /* [parts, inputs] pairs */
    int64_t *pairs;               /* [parts] of each part, those that are left out, too */
    snail_contexts *split;        /* [parts] zeros, whose `words` are to be freed */
    /* of a part */
    snail_sorted_bundle *bundles; /* scratch: [bundles + 1] */
    int32_t *order;               /* scratch: [bundles], twice */
    int32_t *centres;             /* [bundles] */
    int64_t *starts;              /* [bundles + 1] */
    int32_t *contexts;            /* [pairs + BUNDLE_COPY] */
} snail_sort_job;

typedef struct { /* lines of text with labels */
    float *inputs;
    float *outputs; /* shared by all threads */
    const int64_t *bag_ptr;
    const int32_t *bag_rows;
    const int64_t *label_ptr;
    const int32_t *labels;
    const float *line_weights;  /* one a line; NULL: ones */
    const float *label_weights; /* one for each of `labels`, as the next; NULL: ones */
    const float *rests;         /* weight of the line's no to the label; only one-vs-all; NULL: zeros */
    const int32_t *noise;
    uint64_t noise_num;
    snail_tree_paths paths; /* with a tree `labels` are its leaves */
    int64_t label_num; /* rows of `outputs` */
    int64_t stride;
    int64_t first, last; /* lines first..last-1 */
    int copied;          /* whether this thread trains a copy of `outputs`: others write them, too */
    int loss;
    int negatives;
    float rate_start, rate_stop;
    float lead; /* factor of the steps of `inputs` */
    uint64_t stream;
} snail_labels_job;

typedef struct { /* labels of lines, by a trained classifier: nothing is changed */
    const void *inputs;       /* float [.., dim] of any alignment; or NULL: quantised rows: */
    const uint8_t *codes;     /* [.., part_num] */
    const float *centroids;   /* [part_num][256][part_width], of the last part the rest of dim; then 4
                                 floats that are read, but not used */
    const uint8_t *norm_codes; /* or NULL: all lengths are 1 */
    const float *norms;       /* [256] */
    int part_num, part_width;
    const float *outputs;     /* [label_num, stride], zeros from dim on */
    const int32_t *children;  /* of the inner nodes of a tree, [label_num - 1, 2]; or NULL: no tree */
    int64_t label_num;
    int64_t dim, stride;
    int loss; /* softmax, or each label for itself */
    int apart; /* softmax: a label's probability is a logistic function of the odds of its share */
    float slope; /* of these odds */
    float shift, others; /* added to them, and to scores of labels for themselves: best label, others */
    const int64_t *ptr; /* lines' features */
    const int32_t *features;
    int64_t first, last; /* lines first..last-1 */
    int k;
    int32_t *best;  /* [lines, k], -1: none */
    float *chances; /* [lines, k] */
    float *all;     /* NULL, or replaces `chances` [lines, label_num]; `best` then has k = 1 */
    float *scores;  /* NULL, or beside `all` the scores that order labels, [lines, label_num] */
    float *hidden;  /* NULL, or replaces all of these [lines, dim] */
} snail_labelling_job;

typedef struct { /* a codebook: the centroids of one part of rows, by k-means */
    const float *columns; /* [width, stride]: coordinates of points, column after column */
    int64_t point_num;    /* at most stride, which is a multiple of SNAIL_POINTS */
    int64_t stride;
    int width;
    int rounds;
    float *centroids; /* [256, width]: first values, then trained */
} snail_codebook_job;

typedef struct { /* codes of rows, by trained codebooks */
    const void *rows;    /* float [row_num, dim] of any alignment */
    const float *scales; /* NULL, or a factor for each row */
    int64_t dim;
    const float *centroids; /* as in snail_labelling_job, without the 4 floats */
    int part_num, part_width;
    uint8_t *codes; /* [row_num, part_num], written */
    int64_t row_num;
} snail_encode_job;

typedef struct {    /* sparse examples, for linear models and factorization machines */
    float *rows;    /* [row_num, width]: weights, then the state of the method */
    int64_t width;
    int64_t weights_num; /* of a row; a machine's padded to a multiple of SNAIL_PAD */
    const int64_t *ptr;
    const int32_t *places;
    const float *values;
    const int32_t *fields; /* of a machine, or NULL: one field */
    const float *labels;
    const float *weights; /* of examples, or NULL: 1 each */
    int64_t bias;         /* row of the constant feature, or -1; a machine's: only its w counts */
    int64_t hot;          /* rows that a thread has a copy of: 0..hot-1, and `bias`; 0: no copies */
    int64_t field_num;    /* 1: a plain machine */
    int64_t factors;
    int64_t first, last; /* examples first..last-1 */
    int loss;
    int method;
    float rate_start, rate_stop;
    float eps, l1, l2, factor_l2, beta;
} snail_sparse_job;

typedef struct { /* a sparse matrix */
    int64_t n;   /* examples */
    int64_t columns;
    int64_t dim;        /* of the dense rows that it meets */
    const int64_t *ptr; /* n + 1 */
    const int32_t *rows; /* column of each entry */
    const float *values;
} snail_csr;

/* What the relation of a triple does to the end that stays, and how a candidate is scored. */
enum { SNAIL_NO_RELATION, SNAIL_TRANSLATES, SNAIL_SCALES, SNAIL_ROTATES, SNAIL_TURNS };
enum { SNAIL_BY_PRODUCT, SNAIL_BY_L1, SNAIL_BY_L2, SNAIL_BY_MODULUS };
enum { SNAIL_SELF_ADVERSARIAL, SNAIL_MARGIN, SNAIL_CROSS_ENTROPY, SNAIL_PAIRWISE };

typedef struct { /* embeddings of triples, or of pairs */
    float *rows; /* of entities and relations: weights, then AdaGrad's state */
    int64_t width;
    int64_t stride; /* of the weights */
    int64_t dim;    /* of them in use; even where numbers are complex */
    const int32_t *heads;
    const int32_t *relations; /* NULL: pairs */
    const int32_t *tails;
    const int32_t *noise; /* candidates of negatives */
    uint64_t noise_num;
    int64_t first;
    int64_t last;
    int64_t shared;    /* triples that share their negatives */
    int64_t negatives; /* of such a group */
    int relation;
    int metric;
    int loss;
    int method;
    int side;      /* 1: tails are replaced, -1: heads, 0: drawn for each group */
    int normalize; /* entities are unit vectors */
    float margin;
    float turn;        /* radians of a relation's unit, if it turns */
    float temperature; /* of self-adversarial negatives; 0: all weigh the same */
    float l2;          /* of the rows of triples */
    float eps;
    float rate_start, rate_stop;
    uint64_t stream;
} snail_triples_job;

typedef struct { /* biased matrix factorisation */
    float *rows; /* [b, p..] of users and items, then AdaGrad's state */
    int64_t width;
    int64_t stride; /* of the weights */
    const int32_t *users;
    const int32_t *items;
    const float *ratings;
    int64_t first;
    int64_t last;
    int method;
    float l2;
    float eps;
    float rate_start, rate_stop;
} snail_ratings_job;

typedef struct { /* rows of one side, by least squares */
    const float *others; /* rows of the other side */
    const float *gram;   /* of all of these, weighted; stride x stride */
    int64_t stride;
    const int64_t *ptr;    /* entries of each name */
    const int32_t *places; /* of other rows */
    const float *weights;  /* of entries, below 0 where the product is to be 0; or NULL: 1 each */
    const float *penalties; /* of names */
    float *rows;           /* written */
    int64_t first, last;   /* names first..last-1 */
    int steps;
} snail_solve_job;

typedef struct { /* the best products of queries and rows */
    const float *queries; /* n x dim */
    int64_t dim;
    const float *across;    /* groups of SNAIL_GROUP rows, the longest first: dim x SNAIL_GROUP each */
    const float *longest;   /* a bound of the lengths of each group, which falls */
    const int32_t *numbers; /* of rows */
    int64_t row_num;
    const int64_t *ptr;     /* where the numbers begin that a query leaves out */
    const int32_t *without; /* ascending for each query */
    int64_t first, last;    /* queries first..last-1 */
    int64_t top;
    int32_t *best; /* written, like the next: (last - first) x top */
    float *scores;
} snail_best_job;

typedef struct {
    float *weights, *first, *second; /* Adam's moments; NULL where only the loss is wanted */
} snail_moments;

typedef struct { /* a network of one hidden layer with a full softmax */
    int64_t words;
    int64_t width; /* columns of the embedding, a multiple of SNAIL_PAD */
    int64_t window;
    snail_moments embedding; /* words x width */
    float *counts;           /* steps of each of its rows */
    snail_moments output;    /* panels x (width + 1) x SNAIL_PANEL */
    double lr;
    float beta1, beta2, eps;
} snail_cbow_net;

typedef struct {
    int lanes; /* float32 of a vector */
    int (*narrow_products)(void); /* 0: there are none here, 1: they are slower, 2: they are faster */
    snail_row_ops rows;
    snail_wire_ops wire;

    int64_t (*words_scratch)(const snail_words_job *job); /* bytes, as all of these */
    void (*words)(const snail_words_job *job, char *scratch, double *loss, int64_t *examples);
    void (*open_private)(const snail_private_job *job, float *begins);
    void (*close_private)(const snail_private_job *job, float *begins);
    int64_t (*number_inputs)(const snail_sort_job *job);
    int64_t (*find_centres)(const snail_sort_job *job);
    void (*sort_centres)(const snail_sort_job *job, int64_t centre_num);
    int (*split_pairs)(const snail_sort_job *job);
    int64_t (*count_bundles)(const snail_sort_job *job, int part);
    void (*order_bundles)(const snail_sort_job *job, int part, int64_t num);
    int64_t (*pairs_scratch)(const snail_words_job *job);
    void (*pairs)(const snail_words_job *job, char *scratch, double *loss, int64_t *examples);
    int64_t (*labels_scratch)(const snail_labels_job *job);
    void (*labels)(const snail_labels_job *job, char *scratch, double *loss, double *weight);
    int64_t (*labelling_scratch)(const snail_labelling_job *job);
    void (*label_lines)(const snail_labelling_job *job, char *scratch);
    int64_t (*codebook_scratch)(const snail_codebook_job *job);
    void (*codebook)(const snail_codebook_job *job, char *scratch);
    int64_t (*encode_scratch)(const snail_encode_job *job);
    void (*encode_rows)(const snail_encode_job *job, char *scratch);
    int64_t (*linear_scratch)(const snail_sparse_job *job);
    void (*linear)(const snail_sparse_job *job, char *scratch, double *loss, double *weight);
    void (*linear_scores)(const snail_sparse_job *job, float *scores);
    int64_t (*fm_scratch)(const snail_sparse_job *job);
    void (*fm)(const snail_sparse_job *job, char *scratch, double *loss, double *weight);
    void (*fm_scores)(const snail_sparse_job *job, char *scratch, float *scores);
    int64_t (*triples_scratch)(const snail_triples_job *job);
    void (*triples)(const snail_triples_job *job, char *scratch, double *loss);
    void (*pair_scores)(int metric, int64_t dim, int64_t stride, const float *queries,
                        int64_t query_num, const float *rows, int64_t row_num, float *out);
    void (*ratings)(const snail_ratings_job *job, double *loss);
    int64_t (*solve_scratch)(const snail_solve_job *job);
    void (*solve_rows)(const snail_solve_job *job, char *scratch, double *loss);
    void (*add_gram)(const float *rows, int64_t count, int64_t stride, int64_t first, int64_t last,
                     float *room, double *out);
    int64_t (*best_scratch)(void);
    void (*best_products)(const snail_best_job *job, char *scratch);
    void (*ftrl_weights)(float *rows, int64_t n, int64_t weights_num, float per_rate, float base,
                         float l1);

    void (*csr_times_rows)(const snail_csr *x, const float *table, int64_t stride, float *out);
    void (*csr_columns)(const snail_csr *x, int64_t *start, int32_t *examples, float *values);
    void (*csr_gradient)(const snail_csr *x, const int64_t *start, const int32_t *examples,
                         const float *values, const float *dz, float *out);

    int64_t (*cbow_scratch)(int64_t words, int64_t width, int64_t window, int64_t batch);
    double (*cbow_loss)(const snail_cbow_net *net, const int32_t *windows, int64_t n,
                        int64_t batch, float *scratch);
    double (*cbow)(const snail_cbow_net *net, const int32_t *windows, int64_t n, int64_t batch,
                   int64_t steps, float *scratch);

    /* arithmetic on rows; `parts` of `dim` columns lie `stride` floats apart where they are trained */
    int (*in_range)(const int32_t *x, int64_t n, int32_t least, int32_t most);
    void (*copy_rows)(const float *src, int64_t dim, float *dst, int64_t stride, int64_t n);
    void (*bag_means)(const float *inputs, int64_t stride, const int64_t *ptr, const int32_t *rows,
                      const float *weights, float *out, int64_t dim, int64_t n);
    void (*unpack_parts)(const float *packed, float *rows, int64_t dim, int64_t parts,
                         int64_t stride, int64_t n);
    void (*subtract_parts)(const float *rows, float *packed, int64_t dim, int64_t parts,
                           int64_t stride, int64_t n);
    void (*add_weighted)(int64_t n, float *to, const float *from, float weight);
    void (*score_probe)(const float *x, int64_t n, float *sigmoid, float *loss);
} snail_kernel_table;

#endif
