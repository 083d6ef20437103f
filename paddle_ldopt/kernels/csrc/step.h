/* The fused step: one call updates all tensors of an optimizer in place. See step.c for how the work is divided. */
#ifndef LDOPT_STEP_H
#define LDOPT_STEP_H

#include <stdint.h>

enum { LANES = 32 };    /* partial sums of every inner loop: fixed, so that a sum is the same on every machine */
enum { CHUNK = 4096 };  /* maximum number of elements of one inner loop: the size of a thread's staging buffers */
enum { FEW = 1024 };    /* the same for a loop over several rows */
enum { TILE = 32768 };  /* approximate elements of a tile, the unit of work of one thread */

enum dtype { FLOAT32, BFLOAT16, FLOAT16 };
enum rule { ADAMW, ADAM_WEIGHT_DECAY, LAMB, ADAFACTOR, CAME };
enum flag {
    FACTORED = 1,        /* Adafactor, Came: rank 2 and above */
    MOMENTUM = 2,        /* Adafactor, Came: `beta1` is set */
    SCALE_PARAMETER = 4, /* Adafactor, Came */
    RELATIVE_STEP = 8,   /* Adafactor, Came */
    WARMUP_INIT = 16,    /* Adafactor, Came: with RELATIVE_STEP */
    CONSTANT_BETA2 = 32, /* Came: `beta2` instead of 1 - t^-decay_rate */
    AMSGRAD = 64,        /* AdamWeightDecay: state[2] is used */
    CLIP_NORM = 128,     /* AdamWeightDecay: `clip` is the largest norm */
    CLIP_VALUE = 256,    /* AdamWeightDecay: `clip_value` is set */
    CENTRALIZE = 512,    /* Lamb: rows are output channels, the mean of each is subtracted from the gradient */
};

/* One tensor of the optimizer. kernels/__init__.py declares the same for NumPy; ldopt_layout() guards it. */
struct tensor {
    void *param;      /* the weights that are updated: the master weights, if there are any */
    void *copy;       /* low-precision weights that follow the master, or NULL */
    const void *grad; /* all tensors are contiguous, aligned to their type, and do not overlap */
    void *state[5];   /* float32, except state[2], of type `moment_type`:
                         adam: m, v, largest v; lamb: m, v;
                         adafactor, came: mean of g^2 (rows, columns; all in [0] without FACTORED), momentum,
                         and Came's instability (rows, columns) */
    float *step;      /* ADAMW: beta1^t of this update; the others: updates so far */
    float *aux;       /* ADAMW: beta2^t; LAMB, CAME: count of the optimizer's steps, or NULL; ADAFACTOR: the rate used */
    int64_t batch, rows, cols;
    double lr, weight_decay, beta1, beta2, beta3, eps[3], clip, clip_value, decay_rate;
    double count;      /* ADAM_WEIGHT_DECAY: number of this update; LAMB, CAME: the new value of `aux` */
    double grad_scale; /* the gradient is multiplied by it */
    int32_t rule, flags, param_type, copy_type, grad_type, moment_type;
};

/* The division of a tensor into tiles, which depends on its shape, rule and flags; and the constants of its update. */
struct work {
    const struct tensor *t;
    int phases, phase[4]; /* passes over the tensor: each may begin when the one before is complete */
    int64_t tiles, tile_batch, tile_rows, tile_cols, row_tiles, col_tiles, tile_elements;
    double step, lr; /* number of this update; its rate */
    float beta1, rest1, beta2, rest2, beta3, rest3, eps, rate, decay, grad_scale, scale1, scale2;
    float *row_part, *col_part, *row, *col; /* partial sums of each tile; factors of rows and columns, 1 / sqrt(V) */
    float *row_confidence, *col_confidence; /* Came: the same for the instability, 1 / sqrt(S) */
    double *sums;                           /* two for each tile */
};

/* A thread's buffers. The last two are for matrices with few columns, see loops.c: factors and squares of a few rows. */
struct stage {
    float grad[CHUNK], param[CHUNK], moment[CHUNK], factor[FEW + LANES], square[FEW + LANES];
};

static inline int64_t elements(const struct tensor *t) { return t->batch * t->rows * t->cols; }
static inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* rules.c */
void cut(const struct tensor *t, struct work *w);
int64_t scratch_bytes(const struct work *w);
void begin(struct work *w, void *scratch);
void run_tile(const struct work *w, int phase, int64_t tile, struct stage *stage);
void end_phase(struct work *w, int phase);
int64_t norm_tiles(const struct tensor *t);
double norm_tile(const struct tensor *t, int64_t tile, struct stage *stage);

#define HIDDEN __attribute__((visibility("hidden")))
#define EXPORT __attribute__((visibility("default")))

#endif
