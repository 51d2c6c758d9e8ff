// A CUDA that computes nothing, and counts: the driver, cuBLAS, cuRAND, cuDNN and NCCL in one library. With it the calls
// of a step can be counted without a GPU (`check`). All calls succeed at once. Copies to the host bring a number that
// the programs take for right.
// NULL_GPUS: how many GPUs there are. NULL_CALLS: the file for the counts, a line for each function that was called.
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t Address;

// Functions that a step may call. What reads or sets the current GPU costs nothing, and is not counted.
#define COUNTED(F)                                                                                                      \
  F(cuCtxSynchronize) F(cuMemAllocAsync) F(cuMemFreeAsync) F(cuMemcpyHtoDAsync_v2) F(cuMemcpyDtoHAsync_v2)              \
  F(cuMemcpyDtoDAsync_v2) F(cuMemcpyPeerAsync) F(cuMemsetD8Async) F(cuStreamCreate) F(cuStreamSynchronize)              \
  F(cuStreamWaitEvent) F(cuEventCreate) F(cuEventDestroy_v2) F(cuEventRecord) F(cuEventQuery) F(cuEventSynchronize)     \
  F(cuModuleGetFunction) F(cuLaunchKernel) F(cublasSgemm_v2) F(cublasGemmStridedBatchedEx) F(cudnnConvolutionForward)   \
  F(cudnnConvolutionBackwardData) F(cudnnConvolutionBackwardFilter) F(ncclAllReduce) F(ncclCommGetAsyncError)
#define NUMBER(name) NUMBER_OF_##name,
#define NAME(name) #name,
enum { COUNTED(NUMBER) FUNCTIONS };
static const char *const names[] = {COUNTED(NAME)};
static atomic_ulong calls[FUNCTIONS];
#define COUNT(name) atomic_fetch_add_explicit(&calls[NUMBER_OF_##name], 1, memory_order_relaxed)

__attribute__((destructor)) static void print(void) {
  const char *path = getenv("NULL_CALLS");
  FILE *file = path ? fopen(path, "w") : NULL;
  if (!file) return;
  for (int i = 0; i < FUNCTIONS; i++) fprintf(file, "%s %lu\n", names[i], calls[i]);
  fclose(file);
}

static int gpus(void) {
  const char *text = getenv("NULL_GPUS");
  return text ? atoi(text) : 1;
}

static __thread uintptr_t current; // the context: the number of the GPU and 1

static int made(void **object) {
  *object = malloc(1);
  return 0;
}

// -- memory: what was freed last comes again first, as with a driver. Each size has addresses of its own.

struct Size {
  size_t bytes;
  Address taken, *freed;
  size_t free, room;
};
static struct Size sizes[4096];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static int take(Address *to, size_t bytes) {
  bytes = (bytes + 511) / 512 * 512;
  pthread_mutex_lock(&mutex);
  int i = 0;
  while (sizes[i].bytes && sizes[i].bytes != bytes) i++;
  struct Size *size = &sizes[i];
  size->bytes = bytes;
  *to = size->free ? size->freed[--size->free] : ((Address)(i + 1) << 44) + size->taken++ * bytes;
  pthread_mutex_unlock(&mutex);
  return 0;
}

static void give(Address address) {
  pthread_mutex_lock(&mutex);
  struct Size *size = &sizes[(address >> 44) - 1];
  if (size->free == size->room) {
    size->room = 2 * size->room + 1;
    size->freed = realloc(size->freed, size->room * sizeof *size->freed);
  }
  size->freed[size->free++] = address;
  pthread_mutex_unlock(&mutex);
}

// -- the driver

int cuInit(unsigned f) { return gpus() ? 0 : 100; }
int cuDriverGetVersion(int *v) { return *v = 13000, 0; }
int cuGetErrorName(int e, const char **t) { return *t = "CUDA_ERROR", 0; }
int cuGetErrorString(int e, const char **t) { return *t = "an error", 0; }
int cuDeviceGetCount(int *n) { return *n = gpus(), 0; }
int cuDeviceGet(int *g, int i) { return *g = i, i < gpus() ? 0 : 101; }
int cuDeviceGetName(char *t, int room, int g) { return snprintf(t, room, "nothing %d", g), 0; }
int cuDeviceGetUuid_v2(char *id, int g) { return memset(id, g + 1, 16), 0; }
int cuDeviceCanAccessPeer(int *can, int a, int b) { return *can = a != b, 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int g) { return *bytes = 80ull << 30, 0; }
int cuDeviceGetAttribute(int *v, int a, int g) {
  // capability 9.0, memory pools, 132 multiprocessors
  *v = a == 75 ? 9 : a == 76 ? 0 : a == 115 ? 1 : a == 16 ? 132 : 1024;
  return 0;
}
int cuDevicePrimaryCtxRetain(void **c, int g) { return *c = (void *)(uintptr_t)(g + 1), 0; }
int cuDevicePrimaryCtxRelease_v2(int g) { return 0; }
int cuDeviceGetDefaultMemPool(void **p, int g) { return *p = (void *)(uintptr_t)(g + 1), 0; }
int cuMemPoolSetAttribute(void *p, int a, void *v) { return 0; }
int cuMemPoolSetAccess(void *p, const void *a, size_t n) { return 0; }
int cuMemPoolTrimTo(void *p, size_t n) { return 0; }
int cuMemGetInfo_v2(size_t *free, size_t *all) { return *free = 79ull << 30, *all = 80ull << 30, 0; }
int cuCtxGetCurrent(void **c) { return *c = (void *)current, 0; }
int cuCtxSetCurrent(void *c) { return current = (uintptr_t)c, 0; }
int cuCtxSynchronize(void) { return COUNT(cuCtxSynchronize), 0; }
int cuMemAlloc_v2(Address *a, size_t bytes) { return take(a, bytes); }
int cuMemFree_v2(Address a) { return give(a), 0; }
int cuMemAllocAsync(Address *a, size_t bytes, void *s) { return COUNT(cuMemAllocAsync), take(a, bytes); }
int cuMemFreeAsync(Address a, void *s) { return COUNT(cuMemFreeAsync), give(a), current ? 0 : 201; }
int cuMemcpyHtoDAsync_v2(Address t, const void *f, size_t n, void *s) { return COUNT(cuMemcpyHtoDAsync_v2), 0; }
int cuMemcpyDtoHAsync_v2(float *to, Address from, size_t bytes, void *s) {
  COUNT(cuMemcpyDtoHAsync_v2);
  for (size_t i = 0; i < bytes / sizeof *to; i++) to[i] = 13824; // the sum with which a GPU is tried
  return 0;
}
int cuMemcpyDtoDAsync_v2(Address t, Address f, size_t n, void *s) { return COUNT(cuMemcpyDtoDAsync_v2), 0; }
int cuMemcpyPeerAsync(Address t, void *a, Address f, void *b, size_t n, void *s) { return COUNT(cuMemcpyPeerAsync), 0; }
int cuMemsetD8Async(Address t, unsigned char v, size_t n, void *s) { return COUNT(cuMemsetD8Async), 0; }
int cuStreamCreate(void **s, unsigned f) { return COUNT(cuStreamCreate), made(s); }
int cuStreamDestroy_v2(void *s) { return 0; }
int cuStreamSynchronize(void *s) { return COUNT(cuStreamSynchronize), 0; }
int cuStreamWaitEvent(void *s, void *e, unsigned f) { return COUNT(cuStreamWaitEvent), 0; }
int cuEventCreate(void **e, unsigned f) { return COUNT(cuEventCreate), made(e); }
int cuEventDestroy_v2(void *e) { return COUNT(cuEventDestroy_v2), free(e), 0; }
int cuEventRecord(void *e, void *s) { return COUNT(cuEventRecord), 0; }
int cuEventQuery(void *e) { return COUNT(cuEventQuery), 0; }
int cuEventSynchronize(void *e) { return COUNT(cuEventSynchronize), 0; }
int cuEventElapsedTime_v2(float *ms, void *a, void *b) { return *ms = 1, 0; }
int cuModuleLoadData(void **m, const void *image) { return made(m); }
int cuModuleUnload(void *m) { return 0; }
int cuModuleGetFunction(void **f, void *m, const char *name) { return COUNT(cuModuleGetFunction), made(f); }
int cuLaunchKernel(void *f, unsigned x, unsigned y, unsigned z, unsigned u, unsigned v, unsigned w, unsigned shared, void *s,
                   void **arguments, void **extra) {
  return COUNT(cuLaunchKernel), 0;
}

// -- cuBLAS and cuRAND

int cublasCreate_v2(void **h) { return made(h); }
int cublasDestroy_v2(void *h) { return 0; }
int cublasSetStream_v2(void *h, void *s) { return 0; }
int cublasSgemm_v2(void *h, ...) { return COUNT(cublasSgemm_v2), 0; }
int cublasGemmStridedBatchedEx(void *h, ...) { return COUNT(cublasGemmStridedBatchedEx), 0; }
int curandCreateGenerator(void **g, int type) { return made(g); }
int curandDestroyGenerator(void *g) { return 0; }
int curandSetPseudoRandomGeneratorSeed(void *g, unsigned long long seed) { return 0; }
int curandSetStream(void *g, void *s) { return 0; }

// -- cuDNN, which offers one algorithm

struct Offer {
  int algorithm, status;
  float time;
  size_t memory;
  int deterministic, math, reserved[3];
};
static int offer(int *count, struct Offer *offers) {
  *count = 1;
  offers[0] = (struct Offer){.algorithm = 1, .time = 1, .deterministic = 1};
  return 0;
}
size_t cudnnGetVersion(void) { return 91400; }
int cudnnCreate(void **h) { return made(h); }
int cudnnDestroy(void *h) { return 0; }
int cudnnSetStream(void *h, void *s) { return 0; }
int cudnnCreateTensorDescriptor(void **t) { return made(t); }
int cudnnDestroyTensorDescriptor(void *t) { return 0; }
int cudnnCreateFilterDescriptor(void **t) { return made(t); }
int cudnnDestroyFilterDescriptor(void *t) { return 0; }
int cudnnSetTensor4dDescriptor(void *t, ...) { return 0; }
int cudnnSetFilter4dDescriptor(void *t, ...) { return 0; }
int cudnnCreateConvolutionDescriptor(void **t) { return made(t); }
int cudnnDestroyConvolutionDescriptor(void *t) { return 0; }
int cudnnSetConvolution2dDescriptor(void *t, ...) { return 0; }
int cudnnSetConvolutionMathType(void *t, int type) { return 0; }
int cudnnGetConvolutionForwardAlgorithm_v7(void *h, void *x, void *w, void *c, void *y, int room, int *n, struct Offer *o) {
  return offer(n, o);
}
int cudnnGetConvolutionBackwardDataAlgorithm_v7(void *h, void *w, void *y, void *c, void *x, int room, int *n,
                                                struct Offer *o) {
  return offer(n, o);
}
int cudnnGetConvolutionBackwardFilterAlgorithm_v7(void *h, void *x, void *y, void *c, void *w, int room, int *n,
                                                  struct Offer *o) {
  return offer(n, o);
}
int cudnnConvolutionForward(void *h, ...) { return COUNT(cudnnConvolutionForward), 0; }
int cudnnConvolutionBackwardData(void *h, ...) { return COUNT(cudnnConvolutionBackwardData), 0; }
int cudnnConvolutionBackwardFilter(void *h, ...) { return COUNT(cudnnConvolutionBackwardFilter), 0; }

// -- NCCL

struct Id {
  char text[128];
};
int ncclGetVersion(int *v) { return *v = 22809, 0; }
int ncclGetUniqueId(struct Id *id) { return memset(id, 1, sizeof *id), 0; }
const char *ncclGetLastError(void *c) { return ""; }
const char *ncclGetErrorString(int e) { return ""; }
int ncclCommInitRankConfig(void **c, int size, struct Id id, int rank, void *config) { return made(c); }
int ncclCommGetAsyncError(void *c, int *state) { return COUNT(ncclCommGetAsyncError), *state = 0, 0; }
int ncclCommFinalize(void *c) { return 0; }
int ncclCommDestroy(void *c) { return 0; }
int ncclCommAbort(void *c) { return 0; }
int ncclAllReduce(const void *f, void *t, size_t n, int type, int op, void *c, void *s) { return COUNT(ncclAllReduce), 0; }
