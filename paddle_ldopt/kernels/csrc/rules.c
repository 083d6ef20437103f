/* The update rules. Their specification is paddle_ldopt/optimizers/, where each is written as in its paper.

   A rule is a list of passes over the tensor. A pass runs over tiles, in any order and on any thread. Each tile has its
   own place for its sums. After the last tile, `end_phase` adds the sums up in the order of the tiles. So the result
   depends neither on the number of threads nor on their timing. */
#include "loops.h"

#include <math.h>
#include <string.h>

enum pass {
    NORM,             /* AdamWeightDecay: sum of squares of the gradient */
    ADAM_UPDATE,      /* moments and weights */
    MOMENTS,          /* Lamb: moments, squares of the weights and of the update */
    LAMB_UPDATE,      /* computes the update from the moments again: cheaper than storing it */
    MATRIX_SUMS,      /* squares of the gradient by row and column */
    MATRIX_RMS,       /* squares of the update */
    MATRIX_MOMENTUM,  /* Came: momentum and instability */
    MATRIX_UPDATE,
    VECTOR_MOMENT,    /* second moment, squares of the update */
    VECTOR_UPDATE,
};

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int has(const struct tensor *t, int flag) { return (t->flags & flag) != 0; }

/* ---- tiles */

static void add_phase(struct work *w, int pass) { w->phase[w->phases++] = pass; }

HIDDEN void cut(const struct tensor *t, struct work *w)
{
    int64_t n = elements(t), matrix = t->rows * t->cols;
    memset(w, 0, sizeof *w);
    w->t = t;
    if (n == 0) return;
    if (has(t, FACTORED)) {
        add_phase(w, MATRIX_SUMS);
        add_phase(w, MATRIX_RMS);
        if (t->rule == CAME && has(t, MOMENTUM)) add_phase(w, MATRIX_MOMENTUM);
        add_phase(w, MATRIX_UPDATE);
        w->col_tiles = divide_up(t->cols, CHUNK);
        w->tile_cols = divide_up(divide_up(t->cols, w->col_tiles), LANES) * LANES;
        /* at least 32 rows, for few partial sums of columns; at most 1024, because these are float32 */
        w->tile_rows = smaller(1024, larger(32, larger(TILE / w->tile_cols, divide_up(t->rows, 64))));
        w->row_tiles = divide_up(t->rows, w->tile_rows);
        w->tile_batch = w->row_tiles * w->col_tiles == 1 ? larger(1, TILE / matrix) : 1;
        w->tiles = divide_up(t->batch, w->tile_batch) * w->row_tiles * w->col_tiles;
        return;
    }
    if (t->rule == LAMB) {
        add_phase(w, MOMENTS);
        add_phase(w, LAMB_UPDATE);
    } else if (t->rule == ADAMW || t->rule == ADAM_WEIGHT_DECAY) {
        if (has(t, CLIP_NORM)) add_phase(w, NORM);
        add_phase(w, ADAM_UPDATE);
    } else {
        add_phase(w, VECTOR_MOMENT);
        add_phase(w, VECTOR_UPDATE);
    }
    w->tile_elements = larger(TILE, divide_up(divide_up(n, 1024), LANES) * LANES);
    if (has(t, CENTRALIZE)) w->tile_elements = divide_up(w->tile_elements, t->cols) * t->cols;
    w->tiles = divide_up(n, w->tile_elements);
}

HIDDEN int64_t scratch_bytes(const struct work *w)
{
    const struct tensor *t = w->t;
    int64_t floats = 0, factors = t->rule == CAME ? 2 : 1;
    if (has(t, FACTORED))
        floats = t->batch * (t->rows * (w->col_tiles + factors) + t->cols * (w->row_tiles + factors));
    return w->tiles * 2 * (int64_t)sizeof(double) + floats * (int64_t)sizeof(float);
}

/* ---- constants of a step */

static double one_minus_power(double beta, double t) { return beta > 0 ? -expm1(t * log(beta)) : 1.0; }

static void begin_adamw(struct work *w)
{
    const struct tensor *t = w->t;
    float power1 = *t->step, power2 = *t->aux, root = sqrtf(1.0f - power2), lr = (float)t->lr;
    if (t->param_type == FLOAT32 && !t->copy) { /* like Paddle's kernel, which computes 1 - beta in float32 */
        w->rest1 = 1.0f - w->beta1;
        w->rest2 = 1.0f - w->beta2;
    }
    w->eps = (float)t->eps[0] * root;
    w->rate = lr * (root / (1.0f - power1));
    w->decay = lr * (float)t->weight_decay;
}

HIDDEN void begin(struct work *w, void *scratch)
{
    const struct tensor *t = w->t;
    w->sums = scratch;
    w->row_part = (float *)(w->sums + 2 * w->tiles);
    w->col_part = w->row_part + t->batch * t->rows * w->col_tiles;
    w->row = w->col_part + t->batch * t->cols * w->row_tiles;
    w->col = w->row + t->batch * t->rows;
    w->row_confidence = w->col + t->batch * t->cols; /* used by Came only */
    w->col_confidence = w->row_confidence + t->batch * t->rows;
    w->grad_scale = (float)t->grad_scale;
    w->beta1 = (float)t->beta1, w->rest1 = (float)(1.0 - t->beta1);
    w->beta2 = (float)t->beta2, w->rest2 = (float)(1.0 - t->beta2);
    w->beta3 = (float)t->beta3, w->rest3 = (float)(1.0 - t->beta3);
    w->eps = (float)t->eps[0];
    w->step = t->rule == ADAM_WEIGHT_DECAY ? t->count : (double)*t->step + 1.0;
    w->lr = t->lr;
    if (t->rule == ADAMW) {
        begin_adamw(w);
    } else if (t->rule == ADAM_WEIGHT_DECAY) {
        if (t->decay_rate != 0.0) w->lr /= 1.0 + t->decay_rate * (w->step - 1.0);
        w->decay = (float)(w->lr * t->weight_decay);
        w->rate = (float)(w->lr * sqrt(one_minus_power(t->beta2, w->step)) / one_minus_power(t->beta1, w->step));
    } else if (t->rule == LAMB) {
        w->scale1 = (float)(1.0 / one_minus_power(t->beta1, w->step));
        w->scale2 = (float)(1.0 / one_minus_power(t->beta2, w->step));
        w->decay = (float)t->weight_decay;
    } else {
        if (has(t, RELATIVE_STEP))
            w->lr *= fmin(has(t, WARMUP_INIT) ? 1e-6 * w->step : 1e-2, 1.0 / sqrt(w->step));
        if (!has(t, CONSTANT_BETA2)) { /* 1 - beta2 = t^-decay_rate */
            w->rest2 = (float)pow(w->step, -t->decay_rate);
            w->beta2 = 1.0f - w->rest2;
        }
    }
}

/* ---- chunks: float32 numbers are updated in place, 16-bit numbers are copied into a buffer and back */

static const float *read_chunk(const void *from, int type, int64_t at, int64_t n, float *buffer)
{
    if (type == FLOAT32) return (const float *)from + at;
    to_float(buffer, from, type, at, n);
    return buffer;
}

static float *open_chunk(void *from, int type, int64_t at, int64_t n, float *buffer)
{
    if (type == FLOAT32) return (float *)from + at;
    to_float(buffer, from, type, at, n);
    return buffer;
}

static float *open_param(const struct tensor *t, int64_t at, int64_t n, struct stage *s)
{
    return open_chunk(t->param, t->param_type, at, n, s->param);
}

static void close_param(const struct tensor *t, int64_t at, int64_t n, const float *p)
{
    if (t->param_type != FLOAT32) from_float(t->param, p, t->param_type, at, n);
    if (t->copy) from_float(t->copy, p, t->copy_type, at, n);
}

static float *open_momentum(const struct tensor *t, int64_t at, int64_t n, struct stage *s)
{
    return open_chunk(t->state[2], t->moment_type, at, n, s->moment);
}

static void close_momentum(const struct tensor *t, int64_t at, int64_t n, float *m)
{
    if (t->moment_type == FLOAT32) return;
    clip_values(m, 65504.0f, n); /* the largest float16 */
    shorten_denormal(m, n);
    from_float(t->state[2], m, t->moment_type, at, n);
}

static double param_square_sum(const struct tensor *t, int64_t at, int64_t n, struct stage *s)
{
    return square_sum(read_chunk(t->param, t->param_type, at, n, s->param), 1.0f, n);
}

/* ---- tiles of tensors that are not factored: ranges of elements */

static float row_mean(const struct work *w, int64_t at, struct stage *s)
{
    const struct tensor *t = w->t;
    double total = 0;
    for (int64_t end = at + t->cols, n; at < end; at += n) {
        n = smaller(CHUNK, end - at);
        total += sum(read_chunk(t->grad, t->grad_type, at, n, s->grad), n);
    }
    return (float)(total / (double)t->cols);
}

static const float *gradient(const struct tensor *t, float mean, int64_t at, int64_t n, struct stage *s)
{
    if (!has(t, CENTRALIZE) && !has(t, CLIP_VALUE)) return read_chunk(t->grad, t->grad_type, at, n, s->grad);
    to_float(s->grad, t->grad, t->grad_type, at, n);
    if (has(t, CENTRALIZE)) subtract(s->grad, mean, n);
    if (has(t, CLIP_VALUE)) clip_values(s->grad, (float)(t->clip_value / t->grad_scale), n); /* it is scaled later */
    return s->grad;
}

static float *second(const struct tensor *t, int64_t at) { return (float *)t->state[1] + at; }

static void vector_update(const struct work *w, const float *g, float *p, int64_t at, int64_t n, struct stage *s)
{
    const struct tensor *t = w->t;
    const float *squares = (const float *)t->state[0] + at;
    if (!has(t, MOMENTUM)) {
        vector_step(p, g, squares, w->decay, w->rate * w->scale1, n);
        return;
    }
    float *m = open_momentum(t, at, n, s);
    vector_average(m, g, squares, w->beta1, w->rest1, w->scale1, n);
    plain_step(p, m, w->decay, w->rate, n);
    close_momentum(t, at, n, m);
}

static void run_range(const struct work *w, int pass, int64_t tile, struct stage *s)
{
    const struct tensor *t = w->t;
    int64_t from = tile * w->tile_elements, to = smaller(elements(t), from + w->tile_elements);
    double *sums = w->sums + 2 * tile;
    float mean = 0;
    struct adam a = {w->beta1, w->rest1, w->beta2, w->rest2, w->eps, w->rate, w->decay, w->grad_scale};
    sums[0] = sums[1] = 0;
    for (int64_t at = from, n; at < to; at += n) {
        n = smaller(CHUNK, to - at);
        if (has(t, CENTRALIZE) && pass == MOMENTS) {
            if (at % t->cols == 0) mean = row_mean(w, at, s);
            n = smaller(n, t->cols - at % t->cols);
        }
        const float *g = pass == LAMB_UPDATE ? NULL : gradient(t, mean, at, n, s);
        float *first = (float *)t->state[0] + at, *p;
        switch (pass) {
        case NORM:
            sums[0] += square_sum(g, w->grad_scale, n);
            break;
        case ADAM_UPDATE:
            p = open_param(t, at, n, s);
            if (has(t, AMSGRAD))
                adam_max(p, g, first, second(t, at), (float *)t->state[2] + at, a, n);
            else
                adam(p, g, first, second(t, at), a, n);
            close_param(t, at, n, p);
            break;
        case MOMENTS:
            p = open_param(t, at, n, s);
            lamb_moments(p, g, first, second(t, at), a, w->scale1, w->scale2, n, sums);
            break;
        case LAMB_UPDATE:
            p = open_param(t, at, n, s);
            lamb_step(p, first, second(t, at), a, w->scale1, w->scale2, n);
            close_param(t, at, n, p);
            break;
        case VECTOR_MOMENT:
            sums[0] += second_moment(first, g, w->grad_scale, w->beta2, w->rest2, w->eps, n);
            if (has(t, SCALE_PARAMETER)) sums[1] += param_square_sum(t, at, n, s);
            break;
        case VECTOR_UPDATE:
            p = open_param(t, at, n, s);
            vector_update(w, g, p, at, n, s);
            close_param(t, at, n, p);
            break;
        }
    }
}

/* ---- the norm of all gradients: tiles of TILE elements, whatever the rule */

HIDDEN int64_t norm_tiles(const struct tensor *t) { return divide_up(elements(t), TILE); }

HIDDEN double norm_tile(const struct tensor *t, int64_t tile, struct stage *s)
{
    int64_t to = smaller(elements(t), (tile + 1) * TILE);
    double squares = 0;
    for (int64_t at = tile * TILE, n; at < to; at += n) {
        n = smaller(CHUNK, to - at);
        squares += square_sum(read_chunk(t->grad, t->grad_type, at, n, s->grad), 1.0f, n);
    }
    return squares;
}

/* ---- tiles of factored tensors: parts of a matrix, or several small matrices */

struct part {
    int64_t at, rows, cols, stride;
    const float *row, *col, *row_confidence, *col_confidence;
    float *row_sums, *col_sums;
};

static void update_rows(const struct work *w, const float *g, float *p, struct part x, struct stage *s)
{
    const struct tensor *t = w->t;
    float *m;
    if (!has(t, MOMENTUM)) {
        factored_step(p, g, x.row, x.col, w->decay, w->rate * w->scale1, x.rows, x.cols, x.stride);
    } else if (t->rule == ADAFACTOR) {
        m = (float *)t->state[2] + x.at;
        for (int64_t i = 0; i < x.rows; i++, m += x.stride, g += x.stride, p += x.stride) {
            factored_average(m, g, x.row + i, x.col, w->beta1, w->rest1, w->scale1, 1, x.cols, x.stride);
            plain_step(p, m, w->decay, w->rate, x.cols);
        }
    } else {
        m = open_momentum(t, x.at, x.cols, s);
        if (t->moment_type != FLOAT32) /* MATRIX_MOMENTUM stored nothing: the step uses m before rounding */
            factored_average(m, g, x.row, x.col, w->beta1, w->rest1, w->scale1, x.rows, x.cols, x.stride);
        factored_step(p, m, x.row_confidence, x.col_confidence, w->decay, w->rate, x.rows, x.cols, x.stride);
        close_momentum(t, x.at, x.cols, m);
    }
}

static void run_rows(const struct work *w, int pass, struct part x, struct stage *s, double *sums)
{
    const struct tensor *t = w->t;
    const float *g = read_chunk(t->grad, t->grad_type, x.at, x.cols, s->grad);
    float *p;
    switch (pass) {
    case MATRIX_SUMS:
        row_col_sums(g, w->grad_scale, x.rows, x.cols, x.stride, x.row_sums, x.col_sums);
        for (int64_t i = 0; i < (has(t, SCALE_PARAMETER) ? x.rows : 0); i++)
            sums[1] += param_square_sum(t, x.at + i * x.stride, x.cols, s);
        break;
    case MATRIX_RMS:
        sums[0] += factored_square_sum(g, x.row, x.col, x.rows, x.cols, x.stride);
        break;
    case MATRIX_MOMENTUM:
        came_average(open_momentum(t, x.at, x.cols, s), g, x.row, x.col, w->beta1, w->rest1, w->scale1, x.rows, x.cols,
                     x.stride, x.row_sums, x.col_sums);
        break;
    case MATRIX_UPDATE:
        p = open_param(t, x.at, x.cols, s);
        update_rows(w, g, p, x, s);
        close_param(t, x.at, x.cols, p);
        break;
    }
}

/* ---- the same for matrices with few columns: several rows at once, which are contiguous in memory */

static int is_narrow(const struct tensor *t) { return t->cols <= LANES; }

static void update_short_rows(const struct work *w, const float *g, float *p, struct part x, struct stage *s)
{
    const struct tensor *t = w->t;
    int64_t n = x.rows * x.cols;
    int averages = t->rule == ADAFACTOR || t->moment_type != FLOAT32;
    float *m = has(t, MOMENTUM) ? open_momentum(t, x.at, n, s) : NULL;
    if (!m || averages) spread(s->factor, x.row, x.col, x.rows, x.cols);
    if (!m) {
        spread_step(p, g, s->factor, w->decay, w->rate * w->scale1, n);
        return;
    }
    if (averages) spread_average(m, g, s->factor, w->beta1, w->rest1, w->scale1, n);
    if (t->rule == ADAFACTOR) {
        plain_step(p, m, w->decay, w->rate, n);
    } else {
        spread(s->factor, x.row_confidence, x.col_confidence, x.rows, x.cols);
        spread_step(p, m, s->factor, w->decay, w->rate, n);
    }
    close_momentum(t, x.at, n, m);
}

static void run_short_rows(const struct work *w, int pass, struct part x, struct stage *s, double *sums)
{
    const struct tensor *t = w->t;
    int64_t n = x.rows * x.cols;
    const float *g = read_chunk(t->grad, t->grad_type, x.at, n, s->grad);
    float *p;
    switch (pass) {
    case MATRIX_SUMS:
        squares(s->square, g, w->grad_scale, n);
        short_rows_sums(s->square, x.rows, x.cols, x.row_sums, x.col_sums);
        if (has(t, SCALE_PARAMETER)) sums[1] += param_square_sum(t, x.at, n, s);
        break;
    case MATRIX_RMS:
        spread(s->factor, x.row, x.col, x.rows, x.cols);
        sums[0] += spread_square_sum(g, s->factor, n);
        break;
    case MATRIX_MOMENTUM:
        spread(s->factor, x.row, x.col, x.rows, x.cols);
        spread_came_average(open_momentum(t, x.at, n, s), g, s->factor, w->beta1, w->rest1, w->scale1, n, s->square);
        short_rows_sums(s->square, x.rows, x.cols, x.row_sums, x.col_sums);
        break;
    case MATRIX_UPDATE:
        p = open_param(t, x.at, n, s);
        update_short_rows(w, g, p, x, s);
        close_param(t, x.at, n, p);
        break;
    }
}

/* ---- averages of rows and columns */

struct averages {
    float *row_state, *col_state, *row, *col, beta, rest, eps, scale;
};

static struct averages averages_of(const struct work *w, int pass)
{
    const struct tensor *t = w->t;
    struct averages squares = {t->state[0], t->state[1], w->row, w->col, w->beta2, w->rest2, w->eps, w->grad_scale};
    struct averages instability = {
        t->state[3], t->state[4], w->row_confidence, w->col_confidence, w->beta3, w->rest3, (float)t->eps[2], 1.0f};
    return pass == MATRIX_SUMS ? squares : instability;
}

static void run_matrix(const struct work *w, int pass, int64_t tile, struct stage *s)
{
    const struct tensor *t = w->t;
    int64_t per_batch = w->row_tiles * w->col_tiles, row_tile = tile % per_batch / w->col_tiles,
            col_tile = tile % w->col_tiles, from = tile / per_batch * w->tile_batch,
            to = smaller(t->batch, from + w->tile_batch), row = row_tile * w->tile_rows, col = col_tile * w->tile_cols,
            rows = smaller(w->tile_rows, t->rows - row), cols = smaller(w->tile_cols, t->cols - col);
    int buffered = t->param_type != FLOAT32 || t->grad_type != FLOAT32 || t->moment_type != FLOAT32 || t->copy;
    int64_t at_once = is_narrow(t) ? FEW / cols : buffered ? 1 : rows; /* a buffer holds FEW elements, or one row */
    double *sums = w->sums + 2 * tile;
    sums[0] = sums[1] = 0;
    for (int64_t b = from; b < to; b++) {
        float *col_sums = w->col_part + (row_tile * t->batch + b) * t->cols + col;
        int sums_up = pass == MATRIX_SUMS || pass == MATRIX_MOMENTUM;
        if (sums_up) memset(col_sums, 0, (size_t)cols * sizeof *col_sums);
        for (int64_t i = row; i < row + rows; i += at_once) {
            int64_t r = b * t->rows + i, c = b * t->cols + col, some = smaller(at_once, row + rows - i);
            struct part x = {r * t->cols + col, some, cols, t->cols, w->row + r, w->col + c, w->row_confidence + r,
                             w->col_confidence + c, w->row_part + col_tile * t->batch * t->rows + r, col_sums};
            if (is_narrow(t))
                run_short_rows(w, pass, x, s, sums);
            else
                run_rows(w, pass, x, s, sums);
        }
        if (sums_up && w->col_tiles == 1) {
            struct averages a = averages_of(w, pass);
            int64_t r = b * t->rows + row;
            average_lines(a.row_state + r, w->row_part + r, a.row + r, (float)t->cols, a.beta, a.rest, a.eps, rows);
        }
    }
}

HIDDEN void run_tile(const struct work *w, int phase, int64_t tile, struct stage *stage)
{
    if (has(w->t, FACTORED))
        run_matrix(w, w->phase[phase], tile, stage);
    else
        run_range(w, w->phase[phase], tile, stage);
}

/* ---- between the phases */

/* Add the sums of all tiles to those of the first tile. */
static void add_parts(float *parts, int64_t n, int64_t count)
{
    for (int64_t k = 1; k < count; k++)
        for (int64_t i = 0; i < n; i++) parts[i] += parts[k * n + i];
}

/* Finish the row and column averages, and `row` and `col`, whose products are then 1 / sqrt of the averaged matrix. */
static void factor(const struct work *w, struct averages a)
{
    const struct tensor *t = w->t;
    int64_t rows = t->batch * t->rows, cols = t->batch * t->cols;
    if (w->col_tiles > 1) { /* otherwise each tile has finished its rows */
        add_parts(w->row_part, rows, w->col_tiles);
        average_lines(a.row_state, w->row_part, a.row, (float)t->cols, a.beta, a.rest, a.eps, rows);
    }
    add_parts(w->col_part, cols, w->row_tiles);
    average_lines(a.col_state, w->col_part, a.col, (float)t->rows, a.beta, a.rest, a.eps, cols);
    for (int64_t b = 0; b < t->batch; b++) {
        double mean = 0;
        for (int64_t i = 0; i < t->rows; i += CHUNK)
            mean += sum(a.row_state + b * t->rows + i, smaller(CHUNK, t->rows - i));
        /* not the root of row / mean, which may be denormal, and so count as 0, for a row without a gradient */
        float root = (float)sqrt(mean / (double)t->rows) * a.scale;
        for (int64_t i = b * t->cols; i < (b + 1) * t->cols; i++) a.col[i] *= root;
    }
}

static double total(const struct work *w, int which)
{
    double sum = 0;
    for (int64_t i = 0; i < w->tiles; i++) sum += w->sums[2 * i + which];
    return sum;
}

static void scale_rate(struct work *w)
{
    const struct tensor *t = w->t;
    double least = t->eps[1], rms = sqrt(total(w, 1) / (double)elements(t));
    if (has(t, SCALE_PARAMETER)) w->lr *= rms < least ? least : rms;
    w->decay = (float)(w->lr * t->weight_decay);
}

static void clip_update(struct work *w)
{
    const struct tensor *t = w->t;
    double excess = sqrt(total(w, 0) / (double)elements(t)) / t->clip, scale = 1.0 / (excess < 1.0 ? 1.0 : excess);
    int whole_steps = t->rule == ADAFACTOR && has(t, MOMENTUM); /* the momentum includes the rate */
    w->scale1 = (float)(whole_steps ? scale * w->lr : scale);
    w->rate = whole_steps ? 1.0f : (float)w->lr;
}

static void finish(const struct work *w)
{
    const struct tensor *t = w->t;
    if (t->rule == ADAMW) {
        *t->step *= w->beta1;
        *t->aux *= w->beta2;
        return;
    }
    *t->step = (float)w->step;
    if (t->rule == ADAFACTOR) *t->aux = (float)w->lr;
    if ((t->rule == LAMB || t->rule == CAME) && t->aux) *t->aux = (float)t->count;
}

HIDDEN void end_phase(struct work *w, int phase)
{
    const struct tensor *t = w->t;
    switch (w->phase[phase]) {
    case NORM: {
        double norm = sqrt(total(w, 0));
        w->grad_scale *= (float)(t->clip / (norm < t->clip ? t->clip : norm));
        break;
    }
    case MOMENTS: {
        double weights = sqrt(total(w, 0)), update = sqrt(total(w, 1));
        w->rate = (float)(t->lr * (weights > 0 && update > 0 ? weights / update : 1.0));
        break;
    }
    case MATRIX_SUMS:
        factor(w, averages_of(w, MATRIX_SUMS));
        scale_rate(w);
        break;
    case MATRIX_MOMENTUM:
        factor(w, averages_of(w, MATRIX_MOMENTUM));
        break;
    case VECTOR_MOMENT:
        scale_rate(w);
        clip_update(w);
        w->scale1 *= w->grad_scale;
        break;
    case MATRIX_RMS:
        clip_update(w);
        break;
    default:
        break;
    }
    if (phase == w->phases - 1) finish(w);
}
