/* The inner loops, each compiled for several instruction sets, and conversion of 16-bit numbers. */
#ifndef LDOPT_LOOPS_H
#define LDOPT_LOOPS_H

#include "step.h"

/* The compiler does not contract multiply-add (see setup.py), and each sum has LANES partial sums, so all versions of a
   loop give the same bits. There is no AVX-512 version, because memory limits the speed of these loops. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__gnu_linux__) && !defined(LDOPT_PLAIN)
#define CLONES __attribute__((target_clones("default", "avx2")))
#else
#define CLONES
#endif

struct adam {
    float beta1, rest1, beta2, rest2, eps, rate, decay, grad_scale;
};

void to_float(float *restrict out, const void *restrict in, int dtype, int64_t at, int64_t n);
void from_float(void *restrict out, const float *restrict in, int dtype, int64_t at, int64_t n);
void clip_values(float *restrict x, float bound, int64_t n);
void shorten_denormal(float *restrict x, int64_t n); /* float16 denormals towards 0: beta * x must not round to x */
void subtract(float *restrict x, float mean, int64_t n);
double sum(const float *restrict x, int64_t n);
double square_sum(const float *restrict x, float scale, int64_t n);

void adam(float *restrict p, const float *restrict g, float *restrict m, float *restrict v, struct adam a, int64_t n);
void adam_max(float *restrict p, const float *restrict g, float *restrict m, float *restrict v, float *restrict v_max,
              struct adam a, int64_t n);
void lamb_moments(const float *restrict p, const float *restrict g, float *restrict m, float *restrict v, struct adam a,
                  float scale1, float scale2, int64_t n, double *sums);
void lamb_step(float *restrict p, const float *restrict m, const float *restrict v, struct adam a, float scale1,
               float scale2, int64_t n);

/* For matrices. Rows are `stride` elements apart; `row` has one number for each row, `col` one for each column. */
void row_col_sums(const float *restrict g, float scale, int64_t rows, int64_t cols, int64_t stride,
                  float *restrict row_sums, float *restrict col_sums);
double factored_square_sum(const float *restrict g, const float *restrict row, const float *restrict col, int64_t rows,
                           int64_t cols, int64_t stride);
void factored_average(float *restrict m, const float *restrict g, const float *restrict row, const float *restrict col,
                      float beta, float rest, float scale, int64_t rows, int64_t cols, int64_t stride);
void came_average(float *restrict m, const float *restrict g, const float *restrict row, const float *restrict col,
                  float beta, float rest, float scale, int64_t rows, int64_t cols, int64_t stride,
                  float *restrict row_sums, float *restrict col_sums);
void factored_step(float *restrict p, const float *restrict x, const float *restrict row, const float *restrict col,
                   float decay, float rate, int64_t rows, int64_t cols, int64_t stride);

/* For matrices of at most LANES columns, contiguous in memory. Each loop covers the n elements of several rows.
   `factor` has the products of `row` and `col`. `factor` and `squares` have room for LANES more elements. */
void spread(float *restrict factor, const float *restrict row, const float *restrict col, int64_t rows, int64_t cols);
void short_rows_sums(const float *restrict squares, int64_t rows, int64_t cols, float *restrict row_sums,
                     float *restrict col_sums);
void squares(float *restrict out, const float *restrict g, float scale, int64_t n);
double spread_square_sum(const float *restrict g, const float *restrict factor, int64_t n);
void spread_average(float *restrict m, const float *restrict g, const float *restrict factor, float beta, float rest,
                    float scale, int64_t n);
void spread_came_average(float *restrict m, const float *restrict g, const float *restrict factor, float beta,
                         float rest, float scale, int64_t n, float *restrict squares);
void spread_step(float *restrict p, const float *restrict x, const float *restrict factor, float decay, float rate,
                 int64_t n);

/* For vectors, whose second moment s is not factored. */
double second_moment(float *restrict s, const float *restrict g, float scale, float beta, float rest, float eps,
                     int64_t n);
void vector_average(float *restrict m, const float *restrict g, const float *restrict s, float beta, float rest,
                    float scale, int64_t n);
void vector_step(float *restrict p, const float *restrict g, const float *restrict s, float decay, float rate,
                 int64_t n);
void plain_step(float *restrict p, const float *restrict x, float decay, float rate, int64_t n);

/* Update the averages of rows or columns from their sums over `count` elements; `root` is 1 / sqrt of the averages. */
void average_lines(float *restrict average, const float *restrict sums, float *restrict root, float count, float beta,
                   float rest, float eps, int64_t n);

#endif
