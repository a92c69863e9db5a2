/* The table of this build's kernels. */
#ifndef SNAILPS_TABLE_H
#define SNAILPS_TABLE_H

#include "_best_products.h"
#include "_cbow.h"
#include "_classifier.h"
#include "_codebooks.h"
#include "_csr.h"
#include "_fm.h"
#include "_jobs.h"
#include "_label_scores.h"
#include "_least_squares.h"
#include "_linear.h"
#include "_narrow_products.h"
#include "_optimizers.h"
#include "_pair_sorter.h"
#include "_rows.h"
#include "_triples.h"
#include "_wire_types.h"
#include "_word_pairs.h"
#include "_word_vectors.h"

static snail_kernel_table snail_table = {
    .lanes = SNAIL_LANES,
    .narrow_products = snail_narrow_products,
    .rows = {
        .init = snail_init,
        .init_state = snail_init_state,
        .apply = {
            [SNAIL_ADD] = snail_step_add, [SNAIL_SGD] = snail_step_sgd,
            [SNAIL_ADAGRAD] = snail_step_adagrad, [SNAIL_ADAM] = snail_step_adam,
            [SNAIL_FTRL] = snail_step_ftrl, [SNAIL_AVERAGE] = snail_step_average,
            [SNAIL_MOMENTUM] = snail_step_momentum, [SNAIL_ROWWISE] = snail_step_rowwise,
            [SNAIL_MIN_UINT64] = snail_step_min_uint64, [SNAIL_MAX_UINT64] = snail_step_max_uint64,
            [SNAIL_MIN_INT64] = snail_step_min_int64, [SNAIL_MAX_INT64] = snail_step_max_int64,
            [SNAIL_OR] = snail_step_or, [SNAIL_AGAIN] = snail_step_again,
        },
        /* Moments decay, so those of two workers do not add up (`Table.check_push` refuses them):
         * these set rows before a training.  Of averages the values add up. */
        .add_state = {
            [SNAIL_ADD] = snail_step_add, [SNAIL_SGD] = snail_step_add,
            [SNAIL_ADAGRAD] = snail_merge_adagrad, [SNAIL_ADAM] = snail_merge_adam,
            [SNAIL_FTRL] = snail_merge_ftrl, [SNAIL_MOMENTUM] = snail_merge_momentum,
            [SNAIL_ROWWISE] = snail_merge_rowwise,
        },
        .prepare = snail_prepare,
        .sum = snail_csr_sum,
    },
    .wire = {
        .narrow = {
            [SNAIL_WIRE_FLOAT32] = snail_narrow_float32,
            [SNAIL_WIRE_FLOAT16] = snail_narrow_float16, [SNAIL_WIRE_INT8] = snail_narrow_int8,
        },
        .widen = {
            [SNAIL_WIRE_FLOAT32] = snail_widen_float32,
            [SNAIL_WIRE_FLOAT16] = snail_widen_float16, [SNAIL_WIRE_INT8] = snail_widen_int8,
        },
        .narrow_owing = {
            [SNAIL_WIRE_FLOAT32] = snail_narrow_owing_float32,
            [SNAIL_WIRE_FLOAT16] = snail_narrow_owing_float16,
            [SNAIL_WIRE_INT8] = snail_narrow_owing_int8,
        },
        .finite = {
            [SNAIL_WIRE_FLOAT32] = snail_finite_float32,
            [SNAIL_WIRE_FLOAT16] = snail_finite_float16, [SNAIL_WIRE_INT8] = snail_finite_int8,
        },
        .fitting = {
            [SNAIL_WIRE_FLOAT32] = snail_finite_float32,
            [SNAIL_WIRE_FLOAT16] = snail_fitting_float16,
            [SNAIL_WIRE_INT8] = snail_finite_float32,
        },
    },
    .words_scratch = snail_words_scratch,
    .words = snail_train_words,
    .open_private = snail_open_private,
    .close_private = snail_close_private,
    .number_inputs = snail_number_inputs,
    .find_centres = snail_find_centres,
    .sort_centres = snail_sort_centres,
    .split_pairs = snail_split_pairs,
    .count_bundles = snail_count_bundles,
    .order_bundles = snail_order_bundles,
    .pairs_scratch = snail_pairs_scratch,
    .pairs = snail_train_pairs,
    .labels_scratch = snail_labels_scratch,
    .labels = snail_train_labels,
    .labelling_scratch = snail_labelling_scratch,
    .label_lines = snail_label_lines,
    .codebook_scratch = snail_codebook_scratch,
    .codebook = snail_train_codebook,
    .encode_scratch = snail_encode_scratch,
    .encode_rows = snail_encode_rows,
    .linear_scratch = snail_linear_scratch,
    .linear = snail_train_linear,
    .linear_scores = snail_linear_scores,
    .fm_scratch = snail_fm_scratch,
    .fm = snail_train_fm,
    .fm_scores = snail_fm_scores,
    .triples_scratch = snail_triples_scratch,
    .triples = snail_train_triples,
    .pair_scores = snail_pair_scores,
    .ratings = snail_train_ratings,
    .solve_scratch = snail_solve_scratch,
    .solve_rows = snail_solve_rows,
    .add_gram = snail_add_gram,
    .best_scratch = snail_best_scratch,
    .best_products = snail_best_products,
    .ftrl_weights = snail_ftrl_weights_of,
    .csr_times_rows = snail_csr_times_rows,
    .csr_columns = snail_csr_columns,
    .csr_gradient = snail_csr_gradient,
    .cbow_scratch = snail_cbow_scratch,
    .cbow_loss = snail_cbow_loss,
    .cbow = snail_train_cbow,
    .in_range = snail_in_range,
    .copy_rows = snail_copy_rows,
    .bag_means = snail_bag_means,
    .unpack_parts = snail_unpack_parts,
    .subtract_parts = snail_subtract_parts,
    .add_weighted = snail_add_weighted,
    .score_probe = snail_score_probe,
};

#endif
