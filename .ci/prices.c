// What a call of CUDA's driver and of cuBLAS costs the host on this machine, and what a kernel costs beyond its work,
// in a stream and in a graph: a part of gpu-run. It needs no toolkit.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
typedef unsigned long long u64;
static void *cuda, *blas;
static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}
#define FN(ret, name, ...) static ret (*name)(__VA_ARGS__)
FN(int, cuInit, unsigned);
FN(int, cuDeviceGet, int *, int);
FN(int, cuDevicePrimaryCtxRetain, void **, int);
FN(int, cuCtxSetCurrent, void *);
FN(int, cuCtxGetCurrent, void **);
FN(int, cuCtxSynchronize, void);
FN(int, cuStreamCreate, void **, unsigned);
FN(int, cuStreamSynchronize, void *);
FN(int, cuEventCreate, void **, unsigned);
FN(int, cuEventDestroy_v2, void *);
FN(int, cuEventRecord, void *, void *);
FN(int, cuStreamWaitEvent, void *, void *, unsigned);
FN(int, cuEventElapsedTime_v2, float *, void *, void *);
FN(int, cuEventSynchronize, void *);
FN(int, cuMemAllocAsync, u64 *, size_t, void *);
FN(int, cuMemFreeAsync, u64, void *);
FN(int, cuMemcpyDtoDAsync_v2, u64, u64, size_t, void *);
FN(int, cuMemcpyHtoDAsync_v2, u64, const void *, size_t, void *);
FN(int, cuModuleLoadData, void **, const void *);
FN(int, cuModuleGetFunction, void **, void *, const char *);
FN(int, cuLaunchKernel, void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
   void **);
FN(int, cuStreamBeginCapture_v2, void *, int);
FN(int, cuStreamEndCapture, void *, void **);
FN(int, cuGraphInstantiateWithFlags, void **, void *, u64);
FN(int, cuGraphLaunch, void *, void *);
FN(int, cuDeviceGetDefaultMemPool, void **, int);
FN(int, cuMemPoolSetAttribute, void *, int, void *);
FN(int, cublasCreate_v2, void **);
FN(int, cublasSetStream_v2, void *, void *);
FN(int, cublasSgemm_v2, void *, int, int, int, int, int, const float *, u64, int, u64, int, const float *, u64, int);
FN(int, cublasSetMathMode, void *, int);
#define LOAD(lib, name) (name = dlsym(lib, #name))
#define OK(call)                     \
  do {                               \
    int r_ = (call);                 \
    if (r_) {                        \
      printf("%s: %d\n", #call, r_); \
      exit(1);                       \
    }                                \
  } while (0)
static void *stream, *other, *fn;
static u64 mem, mem2;
static float host[4096];
static const char PTX[] = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 p){\nret;\n}\n";
static void launch(void *s) {
  void *p[] = {&mem};
  OK(cuLaunchKernel(fn, 64, 1, 1, 256, 1, 1, 0, s, p, 0));
}
#define PRICE(what, n, body)                 \
  do {                                       \
    double t_ = 0;                           \
    int m_ = 0;                              \
    for (int r = 0; r < 40; r++) {           \
      OK(cuCtxSynchronize());                \
      double a_ = now();                     \
      for (int i = 0; i < n; i++) {          \
        body;                                \
      }                                      \
      double d_ = now() - a_;                \
      if (r >= 10) {                         \
        t_ += d_;                            \
        m_ += n;                             \
      }                                      \
    }                                        \
    OK(cuCtxSynchronize());                  \
    printf("%8.2f us  %s\n", t_ / m_, what); \
    fflush(stdout);                          \
  } while (0)
static float gpu_us(void (*f)(void), int reps) {
  void *a, *b;
  float ms;
  OK(cuEventCreate(&a, 0));
  OK(cuEventCreate(&b, 0));
  f();
  OK(cuCtxSynchronize());
  OK(cuEventRecord(a, stream));
  for (int i = 0; i < reps; i++) f();
  OK(cuEventRecord(b, stream));
  OK(cuEventSynchronize(b));
  OK(cuEventElapsedTime_v2(&ms, a, b));
  return ms * 1e3f / reps;
}
static void *exec;
static int nodes;
static void replay(void) { OK(cuGraphLaunch(exec, stream)); }
static void plain(void) {
  for (int i = 0; i < nodes; i++) launch(stream);
}
static double many(void *s) {
  double a = now();
  for (int i = 0; i < 20000; i++) {
    launch(s);
    if (i % 200 == 199) OK(cuStreamSynchronize(s));
  }
  return (now() - a) / 20000;
}
static void *second(void *ctx) {
  OK(cuCtxSetCurrent(ctx));
  printf("%8.2f us  cuLaunchKernel, with another thread on another stream (and waits)\n", many(other));
  return 0;
}
// to (m x n) = a b, row-major: cuBLAS takes b first. op 1: that one lies transposed in memory
static void *handle;
static int gm, gn, gk, opb, opa;
static void one_gemm(void) {
  float one = 1, zero = 0;
  OK(cublasSgemm_v2(handle, opb, opa, gn, gm, gk, &one, mem, opb ? gk : gn, mem, opa ? gm : gk, &zero, mem2, gn));
}
int main(void) {
  cuda = dlopen("libcuda.so.1", RTLD_NOW);
  if (!cuda) cuda = dlopen("libcuda.so", RTLD_NOW);
  if (!cuda) {
    puts(dlerror());
    return 1;
  }
  LOAD(cuda, cuInit);
  LOAD(cuda, cuDeviceGet);
  LOAD(cuda, cuDevicePrimaryCtxRetain);
  LOAD(cuda, cuCtxSetCurrent);
  LOAD(cuda, cuCtxGetCurrent);
  LOAD(cuda, cuCtxSynchronize);
  LOAD(cuda, cuStreamCreate);
  LOAD(cuda, cuStreamSynchronize);
  LOAD(cuda, cuEventCreate);
  LOAD(cuda, cuEventDestroy_v2);
  LOAD(cuda, cuEventRecord);
  LOAD(cuda, cuStreamWaitEvent);
  LOAD(cuda, cuEventSynchronize);
  LOAD(cuda, cuMemAllocAsync);
  LOAD(cuda, cuMemFreeAsync);
  LOAD(cuda, cuMemcpyDtoDAsync_v2);
  LOAD(cuda, cuMemcpyHtoDAsync_v2);
  LOAD(cuda, cuModuleLoadData);
  LOAD(cuda, cuModuleGetFunction);
  LOAD(cuda, cuLaunchKernel);
  LOAD(cuda, cuStreamBeginCapture_v2);
  LOAD(cuda, cuStreamEndCapture);
  LOAD(cuda, cuGraphInstantiateWithFlags);
  LOAD(cuda, cuGraphLaunch);
  LOAD(cuda, cuDeviceGetDefaultMemPool);
  LOAD(cuda, cuMemPoolSetAttribute);
  if (!LOAD(cuda, cuEventElapsedTime_v2)) cuEventElapsedTime_v2 = dlsym(cuda, "cuEventElapsedTime");
  int dev;
  void *ctx, *mod, *pool;
  u64 keep = ~0ull;
  OK(cuInit(0));
  OK(cuDeviceGet(&dev, 0));
  OK(cuDevicePrimaryCtxRetain(&ctx, dev));
  OK(cuCtxSetCurrent(ctx));
  OK(cuStreamCreate(&stream, 1));
  OK(cuStreamCreate(&other, 1));
  OK(cuModuleLoadData(&mod, PTX));
  OK(cuModuleGetFunction(&fn, mod, "k"));
  OK(cuDeviceGetDefaultMemPool(&pool, dev));
  OK(cuMemPoolSetAttribute(pool, 4, &keep));
  OK(cuMemAllocAsync(&mem, 128 << 20, stream));
  OK(cuMemAllocAsync(&mem2, 128 << 20, stream));
  OK(cuCtxSynchronize());
  void *e, *c;
  OK(cuEventCreate(&e, 2));
  PRICE("cuCtxGetCurrent", 500, cuCtxGetCurrent(&c));
  PRICE("cuLaunchKernel", 200, launch(stream));
  PRICE("cuEventRecord", 200, OK(cuEventRecord(e, stream)));
  PRICE("cuStreamWaitEvent, of the same stream", 200, OK(cuStreamWaitEvent(stream, e, 0)));
  PRICE("cuEventRecord here and cuStreamWaitEvent there", 200, OK(cuEventRecord(e, stream));
        OK(cuStreamWaitEvent(other, e, 0)));
  PRICE("cuEventCreate and cuEventDestroy", 200, void *x; OK(cuEventCreate(&x, 2)); OK(cuEventDestroy_v2(x)));
  PRICE("cuMemAllocAsync and cuMemFreeAsync, 100 KB", 200, u64 x; OK(cuMemAllocAsync(&x, 100000, stream));
        OK(cuMemFreeAsync(x, stream)));
  PRICE("cuMemcpyDtoDAsync, 1 KB", 200, OK(cuMemcpyDtoDAsync_v2(mem2, mem, 1024, stream)));
  PRICE("cuMemcpyDtoDAsync, 800 KB", 200, OK(cuMemcpyDtoDAsync_v2(mem2, mem, 800000, stream)));
  PRICE("cuMemcpyHtoDAsync, 9 KB, pageable", 100, OK(cuMemcpyHtoDAsync_v2(mem, host, 9000, stream)));
  PRICE("cuModuleGetFunction", 200, void *x; OK(cuModuleGetFunction(&x, mod, "k")));
  PRICE("cuStreamSynchronize behind a kernel, both", 50, launch(stream); OK(cuStreamSynchronize(stream)));
  int counts[] = {30, 250};
  for (int i = 0; i < 2; i++) {
    void *g;
    nodes = counts[i];
    double a = now();
    if (!cuStreamBeginCapture_v2 || cuStreamBeginCapture_v2(stream, 1)) {
      puts("no graphs here");
      break;
    }
    plain();
    OK(cuStreamEndCapture(stream, &g));
    double b = now();
    OK(cuGraphInstantiateWithFlags(&exec, g, 0));
    double d = now();
    printf("%8.2f us  capture of %d kernels, a kernel; %.0f us to instantiate\n", (b - a) / nodes, nodes, d - b);
    replay();
    PRICE("cuGraphLaunch of it, host", 10, replay());
    printf("%8.2f us  a kernel of the graph on the GPU, empty; %.2f us in a stream (host or GPU)\n",
           gpu_us(replay, 50) / nodes, gpu_us(plain, 20) / nodes);
  }
  pthread_t t;
  pthread_create(&t, 0, second, ctx);
  printf("%8.2f us  cuLaunchKernel here meanwhile\n", many(stream));
  pthread_join(t, 0);
  blas = dlopen("libcublas.so.13", RTLD_NOW);
  if (!blas) blas = dlopen("libcublas.so", RTLD_NOW);
  if (!blas) {
    puts(dlerror());
    return 0;
  }
  LOAD(blas, cublasCreate_v2);
  LOAD(blas, cublasSetStream_v2);
  LOAD(blas, cublasSgemm_v2);
  LOAD(blas, cublasSetMathMode);
  OK(cublasCreate_v2(&handle));
  OK(cublasSetStream_v2(handle, stream));
  // LeNet at 256: the products as the project calls them
  struct {
    const char *what;
    int m, n, k, b, a;
  } all[] = {{"conv2 forward, 20736 x 50, 500 terms", 20736, 50, 500, 1, 0},
             {"conv2 dx, 20736 x 500, 50 terms", 20736, 500, 50, 0, 0},
             {"conv2 dW, 50 x 500, 20736 terms", 50, 500, 20736, 0, 1},
             {"fc1, 256 x 128, 800 terms", 256, 128, 800, 0, 0},
             {"fc1 dW, 800 x 128, 256 terms", 800, 128, 256, 0, 1},
             {"fc1 dx, 256 x 800, 128 terms", 256, 800, 128, 1, 0}};
  for (int mode = 0; mode <= 3 && cublasSetMathMode; mode += 3) {
    OK(cublasSetMathMode(handle, mode));
    for (int i = 0; i < 6; i++) {
      gm = all[i].m, gn = all[i].n, gk = all[i].k, opb = all[i].b, opa = all[i].a;
      one_gemm();
      OK(cuCtxSynchronize());
      double s = 0;
      for (int r = 0; r < 20; r++) {
        OK(cuCtxSynchronize());
        double x = now();
        for (int j = 0; j < 5; j++) one_gemm();
        s += now() - x;
      }
      printf("%8.2f us  host, %8.2f us GPU (or host): cublasSgemm %s, %s\n", s / 100, gpu_us(one_gemm, 100),
             mode ? "TF32" : "f32", all[i].what);
    }
  }
  return 0;
}
