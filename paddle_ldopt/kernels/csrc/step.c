/* One step: the division of its work among threads.

   All threads together update each large tensor, tile by tile and phase by phase. One thread updates each smaller
   tensor; several small ones are one unit of work. The division does not change the result: see rules.c. */
#ifdef __linux__
#define _GNU_SOURCE
#endif
#include "step.h"

#include <pthread.h>
#include <stdlib.h>

#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_max_threads(void) { return 1; }
static int omp_get_thread_num(void) { return 0; }
#endif

/* If there are several threads, they share each tensor of more than SHARED elements, and none of at most OWN. Each
   additional thread requires PER_THREAD more elements. Threads that share a tensor wait for one another. */
enum { SHARED = 1 << 22, OWN = 1 << 18, PER_THREAD = 1 << 14 };

/* ---- denormal numbers: count as 0 within a step, because a state that decays to 0 would make it many times slower */

#if defined(__x86_64__)
#include <xmmintrin.h>
enum { FLUSH = 0x8040 }; /* denormal results and inputs to 0 */
static unsigned long get_mode(void) { return _mm_getcsr(); }
static void set_mode(unsigned long mode) { _mm_setcsr((unsigned)mode); }
#elif defined(__aarch64__)
enum { FLUSH = 1 << 24 };
static unsigned long get_mode(void)
{
    unsigned long mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
}
static void set_mode(unsigned long mode) { __asm__ volatile("msr fpcr, %0" : : "r"(mode)); }
#else
enum { FLUSH = 0 };
static unsigned long get_mode(void) { return 0; }
static void set_mode(unsigned long mode) { (void)mode; }
#endif

/* ---- a forked child lacks the threads that OpenMP started in its parent: it uses one thread */

static int forked;
static void in_child(void) { forked = 1; }
__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, in_child); }

/* ---- division of the work */

struct plan {
    int64_t *order;                /* indices: first of the shared tensors, then of the others */
    int64_t shared, runs, *starts; /* runs of the others: one unit of work each */
    int64_t shared_bytes, own_bytes;
};

static void divide(const struct tensor *tensors, int64_t n, int64_t most, struct plan *plan)
{
    int64_t others = 0, in_run = 0;
    struct work w;
    for (int64_t i = 0; i < n; i++) {
        if (elements(&tensors[i]) <= most) continue;
        plan->order[plan->shared++] = i;
        cut(&tensors[i], &w);
        plan->shared_bytes = larger(plan->shared_bytes, scratch_bytes(&w));
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t size = elements(&tensors[i]);
        if (size > most) continue;
        if (others == 0 || in_run + size > TILE) {
            plan->starts[plan->runs++] = plan->shared + others;
            in_run = 0;
        }
        plan->order[plan->shared + others++] = i;
        in_run += size + 256; /* every tensor has a fixed cost */
        cut(&tensors[i], &w);
        plan->own_bytes = larger(plan->own_bytes, scratch_bytes(&w));
    }
    plan->starts[plan->runs] = n;
    plan->own_bytes = (plan->own_bytes + 63) / 64 * 64 + (int64_t)sizeof(struct stage);
    plan->shared_bytes = (plan->shared_bytes + 63) / 64 * 64;
}

/* Every other pass goes backwards: it begins with the tiles that are still in the cache. */
static int64_t tile_of(int64_t i, int phase, const struct work *w) { return phase % 2 ? w->tiles - 1 - i : i; }

static void step_alone(const struct tensor *t, void *scratch, struct stage *stage)
{
    struct work w;
    cut(t, &w);
    if (w.tiles == 0) return;
    begin(&w, scratch);
    for (int phase = 0; phase < w.phases; phase++) {
        for (int64_t i = 0; i < w.tiles; i++) run_tile(&w, phase, tile_of(i, phase, &w), stage);
        end_phase(&w, phase);
    }
}

/* Called by all threads of a team, with the same `w` in shared memory. */
static void step_together(const struct tensor *t, struct work *w, void *scratch, struct stage *stage)
{
#pragma omp single
    {
        cut(t, w);
        begin(w, scratch);
    }
    int phases = w->phases; /* a thread that is ahead may set `w` for the next tensor while others leave the loop */
    for (int phase = 0; phase < phases; phase++) {
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < w->tiles; i++) run_tile(w, phase, tile_of(i, phase, w), stage);
#pragma omp single
        end_phase(w, phase);
    }
}

/* Return the first address from `memory` on that is aligned to a cache line. */
static char *aligned(char *memory) { return memory + (64 - (uintptr_t)memory % 64) % 64; }

static void run(const struct tensor *tensors, int threads, const struct plan *plan, char *scratch)
{
    struct work together;
#pragma omp parallel num_threads(threads)
    {
        char *own = scratch + plan->shared_bytes + omp_get_thread_num() * plan->own_bytes;
        struct stage *stage = (struct stage *)own; /* not on the stack, which OMP_STACKSIZE may make too small */
        own += sizeof *stage;
        unsigned long mode = get_mode();
        set_mode(mode | FLUSH);
        for (int64_t i = 0; i < plan->shared; i++)
            step_together(&tensors[plan->order[i]], &together, scratch, stage);
#pragma omp for schedule(dynamic) nowait
        for (int64_t r = 0; r < plan->runs; r++)
            for (int64_t i = plan->starts[r]; i < plan->starts[r + 1]; i++)
                step_alone(&tensors[plan->order[i]], own, stage);
        set_mode(mode);
    }
}

static int team(int64_t size)
{
    int threads = forked ? 1 : omp_get_max_threads();
    return threads > 1 + size / PER_THREAD ? (int)(1 + size / PER_THREAD) : threads;
}

/* Return the sum of the squares of all gradients, or -1 if there is not enough memory. */
EXPORT double ldopt_square_sum(const struct tensor *tensors, int64_t n)
{
    int64_t size = 0, *first;
    double *sums, total = 0;
    struct stage *stages;
    first = malloc(((size_t)n + 1) * sizeof *first);
    if (!first) return -1;
    first[0] = 0;
    for (int64_t i = 0; i < n; i++) {
        size += elements(&tensors[i]);
        first[i + 1] = first[i] + norm_tiles(&tensors[i]);
    }
    int threads = team(size);
    sums = malloc((size_t)first[n] * sizeof *sums + 1);
    stages = malloc((size_t)threads * sizeof *stages);
    if (!sums || !stages) {
        free(stages);
        free(sums);
        free(first);
        return -1;
    }
#pragma omp parallel num_threads(threads)
    {
        struct stage *stage = &stages[omp_get_thread_num()];
        unsigned long mode = get_mode();
        set_mode(mode | FLUSH);
#pragma omp for schedule(dynamic, 16) nowait
        for (int64_t k = 0; k < first[n]; k++) {
            int64_t low = 0, high = n; /* find the tensor of tile k */
            while (high - low > 1) {
                int64_t middle = (low + high) / 2;
                if (first[middle] <= k)
                    low = middle;
                else
                    high = middle;
            }
            sums[k] = norm_tile(&tensors[low], k - first[low], stage);
        }
        set_mode(mode);
    }
    for (int64_t k = 0; k < first[n]; k++) total += sums[k];
    free(stages);
    free(sums);
    free(first);
    return total;
}

/* Update all tensors and return 0, or change nothing and return 1 if there is not enough memory. */
EXPORT int ldopt_step(const struct tensor *tensors, int64_t n)
{
    int64_t size = 0, most = SHARED;
    struct plan plan = {0};
    char *scratch = NULL;
    int failed;
    for (int64_t i = 0; i < n; i++) size += elements(&tensors[i]);
    int threads = team(size);
    if (most > size / (4 * threads)) most = larger(OWN, size / (4 * threads));
    if (threads == 1) most = size;
    plan.order = malloc((size_t)n * sizeof *plan.order + 1);
    plan.starts = malloc(((size_t)n + 1) * sizeof *plan.starts);
    failed = !plan.order || !plan.starts;
    if (!failed) {
        divide(tensors, n, most, &plan);
        scratch = malloc((size_t)(plan.shared_bytes + threads * plan.own_bytes) + 64);
        failed = !scratch;
    }
    if (!failed) run(tensors, threads, &plan, aligned(scratch));
    free(scratch);
    free(plan.starts);
    free(plan.order);
    return failed;
}

#ifndef LDOPT_SOURCES
#define LDOPT_SOURCES 0
#endif

/* For the caller to check: the size of `struct tensor`, and the checksum of the sources (see setup.py; 0 if
   unknown). */
EXPORT int64_t ldopt_layout(void) { return (int64_t)sizeof(struct tensor); }
EXPORT int64_t ldopt_sources(void) { return LDOPT_SOURCES; }
