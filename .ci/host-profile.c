// Stands before one CUDA library and counts the host's time in it, by function: what a profiler would show on a machine
// that has none. A part of first-run.sh, which says how it is built and used.
//
// FUNCTIONS: a file with `F(name)` for each function that the programs load. In the environment are REAL_cuda, REAL_cublas
// and REAL_cudnn, the libraries themselves, and SKIP. It prints a line for each function when the program ends, of the
// time after the first SKIP seconds.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

// All arguments are integers or addresses. No function takes more, and a function does not look at those behind its own.
#define ARGUMENTS                                                                                                       \
  long a1, long a2, long a3, long a4, long a5, long a6, long a7, long a8, long a9, long a10, long a11, long a12,       \
      long a13, long a14, long a15, long a16, long a17, long a18, long a19, long a20, long a21, long a22, long a23,    \
      long a24
#define PASSED                                                                                                          \
  a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17, a18, a19, a20, a21, a22, a23, a24

enum {
#define F(name) NUMBER_##name,
#include FUNCTIONS
#undef F
  COUNT
};
static const char *names[] = {
#define F(name) #name,
#include FUNCTIONS
#undef F
};

static long (*functions[COUNT])(ARGUMENTS);
static unsigned long calls[COUNT];
static double seconds[COUNT], loaded, skip, counted_from;

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec + time.tv_nsec * 1e-9;
}

__attribute__((constructor)) static void load(void) {
  const char *real = getenv("REAL_" LIBRARY), *first = getenv("SKIP");
  void *library = real && *real ? dlopen(real, RTLD_NOW | RTLD_GLOBAL) : NULL;
  if (!library || !first) {
    fprintf(stderr, "set SKIP, and REAL_" LIBRARY " to the library: %s\n", library ? "there is no SKIP" : dlerror());
    exit(9);
  }
  for (int i = 0; i < COUNT; i++) functions[i] = dlsym(library, names[i]);
  skip = atof(first);
  loaded = now();
}

static long call(int i, ARGUMENTS) {
  if (!functions[i]) {
    fprintf(stderr, "%s is missing in " LIBRARY "\n", names[i]);
    exit(9);
  }
  double start = now();
  if (!counted_from && start - loaded > skip) counted_from = start;
  int counts = counted_from > 0; // a call that began before does not count
  long result = functions[i](PASSED);
  if (counts) { // replicas on several threads may lose a count
    calls[i]++;
    seconds[i] += now() - start;
  }
  return result;
}

#define F(name) \
  long name(ARGUMENTS) { return call(NUMBER_##name, PASSED); }
#include FUNCTIONS
#undef F

__attribute__((destructor)) static void print(void) {
  double all = now() - counted_from;
  for (int i = 0; i < COUNT; i++)
    if (calls[i])
      fprintf(stderr, "host: %5.1f%% %8lu calls of %6.2f us: %s\n", 100 * seconds[i] / all, calls[i],
              1e6 * seconds[i] / calls[i], names[i]);
}
