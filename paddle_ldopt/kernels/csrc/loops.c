#include "loops.h"

#include <math.h>
#include <string.h>

static inline float as_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t as_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* ---- 16-bit numbers: converted without denormal float32 numbers, which count as 0 here (see step.c) */

static inline float from_half(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16, doubled = bits + bits;
    float normal = as_float((doubled >> 4) + (0xE0u << 23)) * 0x1p-112f;
    float denormal = as_float((doubled >> 17) | (126u << 23)) - 0.5f;
    return as_float((bits & 0x80000000u) | as_bits(doubled < (1u << 27) ? denormal : normal));
}

static inline uint16_t to_half(float value) /* to nearest, ties to even */
{
    uint32_t bits = as_bits(value), doubled = bits + bits;
    float base = fabsf(value) * 0x1p112f * 0x1p-110f;
    uint32_t bias = doubled & 0xFF000000u;
    bias = bias < 0x71000000u ? 0x71000000u : bias;
    uint32_t rounded = as_bits(as_float((bias >> 1) + 0x07800000u) + base);
    uint32_t body = ((rounded >> 13) & 0x7C00u) + (rounded & 0x0FFFu);
    return (uint16_t)(((bits & 0x80000000u) >> 16) | (doubled > 0xFF000000u ? 0x7E00u : body));
}

static inline uint16_t to_bfloat(float value) /* to nearest, ties to even */
{
    uint32_t bits = as_bits(value), rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    return (uint16_t)((bits & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC0u : rounded);
}

HIDDEN CLONES void to_float(float *restrict out, const void *restrict in, int dtype, int64_t at, int64_t n)
{
    const uint16_t *from = (const uint16_t *)in + at;
    if (dtype == FLOAT32) {
        memcpy(out, (const float *)in + at, (size_t)n * sizeof *out);
    } else if (dtype == BFLOAT16) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) out[i] = as_float((uint32_t)from[i] << 16);
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) out[i] = from_half(from[i]);
    }
}

HIDDEN CLONES void from_float(void *restrict out, const float *restrict in, int dtype, int64_t at, int64_t n)
{
    uint16_t *to = (uint16_t *)out + at;
    if (dtype == FLOAT32) {
        memcpy((float *)out + at, in, (size_t)n * sizeof *in);
    } else if (dtype == BFLOAT16) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) to[i] = to_bfloat(in[i]);
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) to[i] = to_half(in[i]);
    }
}

/* ---- sums */

/* Run `body` for each j below n, with l = j % LANES, in blocks of LANES, which the compiler vectorizes. */
#define FOR_LANES(n, body)                                         \
    do {                                                           \
        int64_t base_ = 0;                                         \
        for (; base_ + LANES <= (n); base_ += LANES) {             \
            _Pragma("omp simd") for (int l = 0; l < LANES; l++)    \
            {                                                      \
                int64_t j = base_ + l;                             \
                body                                               \
            }                                                      \
        }                                                          \
        for (int l = 0; base_ + l < (n); l++) {                    \
            int64_t j = base_ + l;                                 \
            body                                                   \
        }                                                          \
    } while (0)

/* Return the sum of the lanes after n elements; for short rows, this takes most of the time. */
static inline double total(const float lane[LANES], int64_t n)
{
    double sums[LANES / 2], sum = 0;
    if (n < LANES) {
        for (int64_t l = 0; l < n; l++) sum += lane[l];
        return sum;
    }
    for (int l = 0; l < LANES / 2; l++) sums[l] = (double)lane[l] + lane[l + LANES / 2];
    for (int half = LANES / 4; half > 0; half /= 2)
        for (int l = 0; l < half; l++) sums[l] += sums[l + half];
    return sums[0];
}

HIDDEN CLONES double sum(const float *restrict x, int64_t n)
{
    float lane[LANES] = {0};
    FOR_LANES(n, lane[l] += x[j];);
    return total(lane, n);
}

HIDDEN CLONES double square_sum(const float *restrict x, float scale, int64_t n)
{
    float lane[LANES] = {0};
    FOR_LANES(n, float y = x[j] * scale; lane[l] += y * y;);
    return total(lane, n);
}

/* ---- clipping, rounding and centralization; comparisons are written so that NaN stays NaN */

HIDDEN CLONES void clip_values(float *restrict x, float bound, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float y = x[i] < -bound ? -bound : x[i];
        x[i] = y > bound ? bound : y;
    }
}

HIDDEN CLONES void shorten_denormal(float *restrict x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float small = fabsf(x[i]) < 0x1p-14f ? x[i] : 0.0f;
        float shorter = (float)(int32_t)(small * 0x1p24f) * 0x1p-24f;
        x[i] = fabsf(x[i]) < 0x1p-14f ? shorter : x[i];
    }
}

HIDDEN CLONES void subtract(float *restrict x, float mean, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) x[i] -= mean;
}

/* ---- Adam and LAMB */

HIDDEN CLONES void adam(float *restrict p, const float *restrict g, float *restrict m, float *restrict v, struct adam a,
                        int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float x = g[i] * a.grad_scale;
        m[i] = a.beta1 * m[i] + a.rest1 * x;
        v[i] = a.beta2 * v[i] + a.rest2 * x * x;
        p[i] = p[i] - a.decay * p[i] - a.rate * m[i] / (sqrtf(v[i]) + a.eps);
    }
}

HIDDEN CLONES void adam_max(float *restrict p, const float *restrict g, float *restrict m, float *restrict v,
                            float *restrict v_max, struct adam a, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float x = g[i] * a.grad_scale;
        m[i] = a.beta1 * m[i] + a.rest1 * x;
        v[i] = a.beta2 * v[i] + a.rest2 * x * x;
        v_max[i] = v_max[i] >= v[i] ? v_max[i] : v_max[i] != v_max[i] ? v_max[i] : v[i];
        p[i] = p[i] - a.decay * p[i] - a.rate * m[i] / (sqrtf(v_max[i]) + a.eps);
    }
}

static inline float lamb_update(float p, float m, float v, struct adam a, float scale1, float scale2)
{
    return m * scale1 / (sqrtf(v * scale2) + a.eps) + a.decay * p;
}

HIDDEN CLONES void lamb_moments(const float *restrict p, const float *restrict g, float *restrict m, float *restrict v,
                                struct adam a, float scale1, float scale2, int64_t n, double *sums)
{
    float param[LANES] = {0}, update[LANES] = {0};
    FOR_LANES(n, float x = g[j] * a.grad_scale; m[j] = a.beta1 * m[j] + a.rest1 * x;
              v[j] = a.beta2 * v[j] + a.rest2 * x * x; float u = lamb_update(p[j], m[j], v[j], a, scale1, scale2);
              param[l] += p[j] * p[j]; update[l] += u * u;);
    sums[0] += total(param, n);
    sums[1] += total(update, n);
}

HIDDEN CLONES void lamb_step(float *restrict p, const float *restrict m, const float *restrict v, struct adam a,
                             float scale1, float scale2, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) p[i] -= a.rate * lamb_update(p[i], m[i], v[i], a, scale1, scale2);
}

/* ---- Adafactor and CAME: matrices */

HIDDEN CLONES void row_col_sums(const float *restrict g, float scale, int64_t rows, int64_t cols, int64_t stride,
                                float *restrict row_sums, float *restrict col_sums)
{
    for (int64_t i = 0; i < rows; i++, g += stride) {
        float lane[LANES] = {0};
        FOR_LANES(cols, float x = g[j] * scale; float q = x * x; lane[l] += q; col_sums[j] += q;);
        row_sums[i] = (float)total(lane, cols);
    }
}

HIDDEN CLONES double factored_square_sum(const float *restrict g, const float *restrict row, const float *restrict col,
                                         int64_t rows, int64_t cols, int64_t stride)
{
    double sum = 0;
    for (int64_t i = 0; i < rows; i++, g += stride) {
        float lane[LANES] = {0}, r = row[i];
        FOR_LANES(cols, float u = g[j] * (r * col[j]); lane[l] += u * u;);
        sum += total(lane, cols);
    }
    return sum;
}

HIDDEN CLONES void factored_average(float *restrict m, const float *restrict g, const float *restrict row,
                                    const float *restrict col, float beta, float rest, float scale, int64_t rows,
                                    int64_t cols, int64_t stride)
{
    for (int64_t i = 0; i < rows; i++, g += stride, m += stride) {
        float r = row[i];
#pragma omp simd
        for (int64_t j = 0; j < cols; j++) m[j] = beta * m[j] + rest * (g[j] * (r * col[j]) * scale);
    }
}

HIDDEN CLONES void came_average(float *restrict m, const float *restrict g, const float *restrict row,
                                const float *restrict col, float beta, float rest, float scale, int64_t rows,
                                int64_t cols, int64_t stride, float *restrict row_sums, float *restrict col_sums)
{
    for (int64_t i = 0; i < rows; i++, g += stride, m += stride) {
        float lane[LANES] = {0}, r = row[i];
        FOR_LANES(cols, float u = g[j] * (r * col[j]) * scale; m[j] = beta * m[j] + rest * u;
                  float q = (u - m[j]) * (u - m[j]); lane[l] += q; col_sums[j] += q;);
        row_sums[i] = (float)total(lane, cols);
    }
}

HIDDEN CLONES void factored_step(float *restrict p, const float *restrict x, const float *restrict row,
                                 const float *restrict col, float decay, float rate, int64_t rows, int64_t cols,
                                 int64_t stride)
{
    for (int64_t i = 0; i < rows; i++, p += stride, x += stride) {
        float r = row[i];
#pragma omp simd
        for (int64_t j = 0; j < cols; j++) p[j] = p[j] - decay * p[j] - x[j] * (r * col[j]) * rate;
    }
}

/* ---- Adafactor and CAME: matrices with few columns

   The overhead of a loop over one short row exceeds its arithmetic. So the factors of several rows are laid out like
   the rows, and each loop covers all of their elements. Loops that need separate rows read and write them in quads of
   numbers: the next row overwrites numbers written past the end of a row, and numbers read there are not used. */

#define INLINE static inline __attribute__((always_inline))

typedef float quad __attribute__((vector_size(16)));
typedef int32_t choice __attribute__((vector_size(16)));

#ifdef __clang__
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICK(a, b, ...) __builtin_shuffle(a, b, (choice){__VA_ARGS__})
#endif

/* Call one of eight copies of a function, each with a constant last argument: the number of quads in a row. */
#define BY_QUADS(function, ...)                    \
    switch ((cols + 3) / 4) {                      \
    case 1: function(__VA_ARGS__, 1); break;       \
    case 2: function(__VA_ARGS__, 2); break;       \
    case 3: function(__VA_ARGS__, 3); break;       \
    case 4: function(__VA_ARGS__, 4); break;       \
    case 5: function(__VA_ARGS__, 5); break;       \
    case 6: function(__VA_ARGS__, 6); break;       \
    case 7: function(__VA_ARGS__, 7); break;       \
    default: function(__VA_ARGS__, 8);             \
    }

INLINE quad load(const float *x)
{
    quad loaded;
    memcpy(&loaded, x, sizeof loaded);
    return loaded;
}

INLINE void store(float *x, quad stored) { memcpy(x, &stored, sizeof stored); }

INLINE void spread_quads(float *restrict factor, const float *restrict row, const float *restrict col, int64_t rows,
                         int64_t cols, const int quads)
{
    float padded[LANES] = {0};
    memcpy(padded, col, (size_t)cols * sizeof *col);
    for (int64_t i = 0; i < rows; i++, factor += cols) {
        float r = row[i];
#pragma omp simd
        for (int l = 0; l < 4 * quads; l++) factor[l] = r * padded[l];
    }
}

HIDDEN CLONES void spread(float *restrict factor, const float *restrict row, const float *restrict col, int64_t rows,
                          int64_t cols)
{
    BY_QUADS(spread_quads, factor, row, col, rows, cols)
}

/* Add a row to the column sums; return four partial sums of the row. `last` masks the row's part of its last quad. */
INLINE quad add_row(const float *row, quad *down, choice last, const int quads)
{
    quad sum = (quad)((choice)load(row + 4 * quads - 4) & last);
    for (int k = 0; k < quads; k++) down[k] += load(row + 4 * k);
    for (int k = 0; k < quads - 1; k++) sum += load(row + 4 * k);
    return sum;
}

INLINE void sum_quads(const float *restrict squares, int64_t rows, int64_t cols, float *restrict row_sums,
                      float *restrict col_sums, const int quads)
{
    float padded[LANES] = {0};
    quad down[LANES / 4];
    choice last = {-1, cols > 4 * quads - 3 ? -1 : 0, cols > 4 * quads - 2 ? -1 : 0, cols > 4 * quads - 1 ? -1 : 0};
    int64_t i = 0;
    memcpy(padded, col_sums, (size_t)cols * sizeof *col_sums);
    for (int k = 0; k < quads; k++) down[k] = load(padded + 4 * k);
    for (; i + 4 <= rows; i += 4, squares += 4 * cols) {
        quad a = add_row(squares, down, last, quads), b = add_row(squares + cols, down, last, quads),
             c = add_row(squares + 2 * cols, down, last, quads), d = add_row(squares + 3 * cols, down, last, quads);
        quad ab = PICK(a, b, 0, 4, 1, 5) + PICK(a, b, 2, 6, 3, 7), cd = PICK(c, d, 0, 4, 1, 5) + PICK(c, d, 2, 6, 3, 7);
        store(row_sums + i, PICK(ab, cd, 0, 1, 4, 5) + PICK(ab, cd, 2, 3, 6, 7));
    }
    for (; i < rows; i++, squares += cols) {
        quad a = add_row(squares, down, last, quads);
        row_sums[i] = (a[0] + a[2]) + (a[1] + a[3]);
    }
    for (int k = 0; k < quads; k++) store(padded + 4 * k, down[k]);
    memcpy(col_sums, padded, (size_t)cols * sizeof *col_sums);
}

HIDDEN CLONES void short_rows_sums(const float *restrict squares, int64_t rows, int64_t cols, float *restrict row_sums,
                                   float *restrict col_sums)
{
    BY_QUADS(sum_quads, squares, rows, cols, row_sums, col_sums)
}

HIDDEN CLONES void squares(float *restrict out, const float *restrict g, float scale, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) out[i] = (g[i] * scale) * (g[i] * scale);
}

HIDDEN CLONES double spread_square_sum(const float *restrict g, const float *restrict factor, int64_t n)
{
    float lane[LANES] = {0};
    FOR_LANES(n, float u = g[j] * factor[j]; lane[l] += u * u;);
    return total(lane, n);
}

HIDDEN CLONES void spread_average(float *restrict m, const float *restrict g, const float *restrict factor, float beta,
                                  float rest, float scale, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) m[i] = beta * m[i] + rest * (g[i] * factor[i] * scale);
}

HIDDEN CLONES void spread_came_average(float *restrict m, const float *restrict g, const float *restrict factor,
                                       float beta, float rest, float scale, int64_t n, float *restrict squares)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float u = g[i] * factor[i] * scale;
        m[i] = beta * m[i] + rest * u;
        squares[i] = (u - m[i]) * (u - m[i]);
    }
}

HIDDEN CLONES void spread_step(float *restrict p, const float *restrict x, const float *restrict factor, float decay,
                               float rate, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) p[i] = p[i] - decay * p[i] - x[i] * factor[i] * rate;
}

/* ---- Adafactor and CAME: vectors. Gradients are scaled before the division, because 0 * inf would be NaN */

HIDDEN CLONES double second_moment(float *restrict s, const float *restrict g, float scale, float beta, float rest,
                                   float eps, int64_t n)
{
    float lane[LANES] = {0};
    FOR_LANES(n, float x = g[j] * scale; s[j] = beta * s[j] + rest * (x * x + eps); float u = x / sqrtf(s[j]);
              lane[l] += u * u;);
    return total(lane, n);
}

HIDDEN CLONES void vector_average(float *restrict m, const float *restrict g, const float *restrict s, float beta,
                                  float rest, float scale, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) m[i] = beta * m[i] + rest * (g[i] * scale / sqrtf(s[i]));
}

HIDDEN CLONES void vector_step(float *restrict p, const float *restrict g, const float *restrict s, float decay,
                               float rate, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) p[i] = p[i] - decay * p[i] - g[i] * rate / sqrtf(s[i]);
}

HIDDEN CLONES void plain_step(float *restrict p, const float *restrict x, float decay, float rate, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) p[i] = p[i] - decay * p[i] - x[i] * rate;
}

/* ---- Adafactor and CAME: rows and columns */

HIDDEN CLONES void average_lines(float *restrict average, const float *restrict sums, float *restrict root, float count,
                                 float beta, float rest, float eps, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        average[i] = beta * average[i] + rest * (sums[i] / count + eps);
        root[i] = 1.0f / sqrtf(average[i]);
    }
}
