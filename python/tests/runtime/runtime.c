// A stand-in for CUDA's runtime, cuBLAS and cuBLASLt for PyTorch, on the stand-in for the driver in `tools/standin/`: for tests of
// everything around the kernels (allocations, addresses, streams, events, copies) on machines without a GPU.
//
// Loaded before PyTorch (LD_PRELOAD). Memory, streams and events are the driver's; copies and fills run, kernels and products do
// not. So a step allocates, orders and copies as on a GPU, and computes nothing: values mean nothing, and tests compare none.
// Functions that are missing here are CUDA's own, which refuse without a driver.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#define DEVICE (1ull << 50)  // as in `tools/standin/src/memory.rs`

static void* driver(const char* name) {
  static void* library = NULL;
  if (library == NULL) {
    library = dlopen(getenv("PLIMSOLL_STANDIN"), RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
      fprintf(stderr, "runtime: %s\n", dlerror());
      abort();
    }
    unsigned context[2];
    int (*init)(unsigned) = dlsym(library, "cuInit");
    int (*retain)(void*, int) = dlsym(library, "cuDevicePrimaryCtxRetain");
    if (init(0) || retain(context, 0)) abort();
  }
  void* found = dlsym(library, name);
  if (found == NULL) {
    fprintf(stderr, "runtime: the stand-in has no %s\n", name);
    abort();
  }
  return found;
}

// Each thread has the context, as PyTorch's threads do.
static void enter(void) {
  static __thread int entered = 0;
  if (entered) return;
  static size_t context = 0;
  int (*retain)(size_t*, int) = driver("cuDevicePrimaryCtxRetain");
  int (*release)(int) = driver("cuDevicePrimaryCtxRelease_v2");
  int (*set)(size_t) = driver("cuCtxSetCurrent");
  if (retain(&context, 0) || set(context) || release(0)) abort();
  entered = 1;
}

#define CALL(name, types, ...) (enter(), (cudaError_t)((int(*) types)driver(name))(__VA_ARGS__))

cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = 13020, cudaSuccess; }
cudaError_t cudaGetLastError(void) { return cudaSuccess; }
cudaError_t cudaPeekAtLastError(void) { return cudaSuccess; }
cudaError_t cudaDeviceCanAccessPeer(int* can, int a, int b) { return *can = a == b, cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, enum cudaDeviceAttr which, int device) {
  (void)device;
  *value = which == cudaDevAttrComputeCapabilityMajor ? 9 : which == cudaDevAttrComputeCapabilityMinor ? 0 : 1024;
  if (which == cudaDevAttrMultiProcessorCount) *value = 132;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp* found, int device) {
  memset(found, 0, sizeof *found);
  CALL("cuDeviceGetName", (char*, int, int), found->name, sizeof found->name, device);
  CALL("cuDeviceTotalMem_v2", (size_t*, int), &found->totalGlobalMem, device);
  found->major = 9;
  found->warpSize = 32;
  found->multiProcessorCount = 132;
  found->maxThreadsPerBlock = 1024;
  found->maxThreadsPerMultiProcessor = 2048;
  found->maxBlocksPerMultiProcessor = 32;
  found->sharedMemPerBlock = 48 << 10;
  found->sharedMemPerBlockOptin = 227 << 10;
  found->sharedMemPerMultiprocessor = 228 << 10;
  found->regsPerBlock = found->regsPerMultiprocessor = 1 << 16;
  found->textureAlignment = 512;
  for (int n = 0; n < 3; n++) {
    found->maxThreadsDim[n] = n < 2 ? 1024 : 64;
    found->maxGridSize[n] = n == 0 ? 0x7fffffff : 65535;
  }
  return cudaSuccess;
}

// Memory.
cudaError_t cudaMalloc(void** address, size_t bytes) {
  return CALL("cuMemAlloc_v2", (void**, size_t), address, bytes);
}
cudaError_t cudaFree(void* address) { return CALL("cuMemFree_v2", (void*), address); }
cudaError_t cudaMemGetInfo(size_t* free, size_t* all) {
  return CALL("cuMemGetInfo_v2", (size_t*, size_t*), free, all);
}
cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned flags) {
  *address = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  return CALL("cuMemHostRegister_v2", (void*, size_t, unsigned), *address, (bytes + 4095) / 4096 * 4096, flags & 0);
}
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes* found, const void* pointer) {
  memset(found, 0, sizeof *found);
  found->type = (uintptr_t)pointer >= DEVICE ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  found->devicePointer = (void*)pointer;
  return cudaSuccess;
}
static int synchronise(cudaStream_t stream) { return CALL("cuStreamSynchronize", (cudaStream_t), stream); }
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
  (void)kind;
  const int to_device = (uintptr_t)to >= DEVICE, from_device = (uintptr_t)from >= DEVICE;
  if (bytes == 0) return cudaSuccess;
  if (to_device && from_device) {
    return CALL("cuMemcpyDtoDAsync_v2", (void*, const void*, size_t, cudaStream_t), to, from, bytes, stream);
  }
  if (to_device) {
    return CALL("cuMemcpyHtoDAsync_v2", (void*, const void*, size_t, cudaStream_t), to, from, bytes, stream);
  }
  return CALL("cuMemcpyDtoHAsync_v2", (void*, const void*, size_t, cudaStream_t), to, from, bytes, stream);
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, enum cudaMemcpyKind kind) {
  const cudaError_t status = cudaMemcpyAsync(to, from, bytes, kind, NULL);
  return status != cudaSuccess ? status : (cudaError_t)synchronise(NULL);
}
cudaError_t cudaMemsetAsync(void* address, int byte, size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  return CALL("cuMemsetD8Async", (void*, unsigned char, size_t, cudaStream_t), address, byte, bytes, stream);
}

// Streams and events.
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return *least = 0, *greatest = -5, cudaSuccess;
}
static cudaStream_t streams[256];
static int stream_count = 1;  // the first is the default stream
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  (void)flags, (void)priority;
  const cudaError_t status = CALL("cuStreamCreate", (cudaStream_t*, unsigned), stream, 1);
  if (stream_count == 256) abort();
  streams[stream_count++] = *stream;
  return status;
}
static int is_captured(cudaStream_t stream) {
  enum cudaStreamCaptureStatus status;
  cudaStreamIsCapturing(stream, &status);
  return status != cudaStreamCaptureStatusNone;
}
cudaError_t cudaDeviceSynchronize(void) {
  for (int n = 0; n < stream_count; n++) {
    if (is_captured(streams[n])) return cudaErrorStreamCaptureUnsupported;
    synchronise(streams[n]);
  }
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(
    cudaStream_t stream, enum cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph,
    const cudaGraphNode_t** after, const cudaGraphEdgeData** edges, size_t* count) {
  (void)graph, (void)after, (void)edges, (void)count;
  typedef int (*Info)(cudaStream_t, enum cudaStreamCaptureStatus*, unsigned long long*, void*, void*, void*);
  return enter(), (cudaError_t)((Info)driver("cuStreamGetCaptureInfo_v2"))(stream, status, id, NULL, NULL, NULL);
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  (void)stream;
  return *priority = 0, cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return synchronise(stream); }
cudaError_t cudaStreamQuery(cudaStream_t stream) { return synchronise(stream); }
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus* status) {
  return CALL("cuStreamIsCapturing", (cudaStream_t, enum cudaStreamCaptureStatus*), stream, status);
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
  return CALL("cuStreamBeginCapture_v2", (cudaStream_t, unsigned), stream, mode);
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = NULL;
  return CALL("cuStreamEndCapture", (cudaStream_t, cudaGraph_t*), stream, graph);
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  return CALL("cuGraphGetNodes", (cudaGraph_t, cudaGraphNode_t*, size_t*), graph, nodes, count);
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long flags) {
  return CALL("cuGraphInstantiateWithFlags", (cudaGraphExec_t*, cudaGraph_t, unsigned long long), made, graph, flags);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  return CALL("cuGraphLaunch", (cudaGraphExec_t, cudaStream_t), graph, stream);
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { return CALL("cuGraphExecDestroy", (cudaGraphExec_t), graph); }
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return CALL("cuGraphDestroy", (cudaGraph_t), graph); }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  return CALL("cuStreamWaitEvent", (cudaStream_t, cudaEvent_t, unsigned), stream, event, flags);
}
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode* mode) {
  return CALL("cuThreadExchangeStreamCaptureMode", (enum cudaStreamCaptureMode*), mode);
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return CALL("cuEventCreate", (cudaEvent_t*, unsigned), event, flags & 3);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { return CALL("cuEventDestroy_v2", (cudaEvent_t), event); }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return CALL("cuEventRecord", (cudaEvent_t, cudaStream_t), event, stream);
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  if (flags == 0) return cudaEventRecord(event, stream);
  return CALL("cuEventRecordWithFlags", (cudaEvent_t, cudaStream_t, unsigned), event, stream, flags);
}
cudaError_t cudaEventQuery(cudaEvent_t event) { return (void)event, cudaDeviceSynchronize(); }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return (void)event, cudaDeviceSynchronize(); }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  return CALL("cuEventElapsedTime", (float*, cudaEvent_t, cudaEvent_t), milliseconds, from, to);
}

// Driver functions that PyTorch loads itself, from this library as `libcuda.so.1`.
int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* is_active) {
  return (void)device, *flags = 0, *is_active = 1, 0;
}
int cuCtxGetCurrent(size_t* context) { return *context = 1, 0; }
static int refused(void) { return 801; }  // CUDA_ERROR_NOT_SUPPORTED
cudaError_t cudaGetDriverEntryPointByVersion(
    const char* name, void** found, unsigned version, unsigned long long flags, enum cudaDriverEntryPointQueryResult* how) {
  (void)name, (void)version, (void)flags;
  *found = (void*)&refused;
  if (how != NULL) *how = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

// Kernels, which do nothing.
cudaError_t cudaLaunchKernel(const void* f, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream) {
  (void)f, (void)grid, (void)block, (void)arguments, (void)shared, (void)stream;
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(void* f, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream) {
  (void)f, (void)grid, (void)block, (void)arguments, (void)shared, (void)stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(void** kernel, const void* f) { return *kernel = (void*)f, cudaSuccess; }
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* how, const void* f, void** arguments) {
  return (void)how, (void)f, (void)arguments, cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes* found, const void* f) {
  (void)f;
  memset(found, 0, sizeof *found);
  found->maxThreadsPerBlock = 1024;
  found->binaryVersion = found->ptxVersion = 90;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* f, enum cudaFuncAttribute which, int value) {
  return (void)f, (void)which, (void)value, cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* f, int size, size_t shared) {
  (void)f, (void)size, (void)shared;
  return *blocks = 2, cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, const void* f, int size, size_t shared, unsigned flags) {
  (void)f, (void)size, (void)shared, (void)flags;
  return *blocks = 2, cudaSuccess;
}

// cuBLAS and cuBLASLt: handles that are numbers, and products that are not computed.
#define DONE(name) \
  int name() { return 0; }
#define MAKES(name) \
  int name(size_t* handle) { return *handle = 1, 0; }
MAKES(cublasCreate_v2)
DONE(cublasDestroy_v2)
DONE(cublasSetStream_v2)
DONE(cublasSetWorkspace_v2)
DONE(cublasSetMathMode)
int cublasGetMathMode(void* handle, int* mode) { return (void)handle, *mode = 0, 0; }
int cublasGetPointerMode_v2(void* handle, int* mode) { return (void)handle, *mode = 0, 0; }
DONE(cublasSetPointerMode_v2)
DONE(cublasSgemm_v2)
DONE(cublasSgemmEx)
DONE(cublasGemmEx)
DONE(cublasSgemmStridedBatched)
DONE(cublasGemmStridedBatchedEx)
DONE(cublasSgemv_v2)
DONE(cublasSdot_v2)
DONE(cublasLtMatmul)
int cublasLtMatmulAlgoGetHeuristic(
    void* handle, void* product, void* a, void* b, void* c, void* d, void* preference, int wanted, void* found, int* count) {
  (void)handle, (void)product, (void)a, (void)b, (void)c, (void)d, (void)preference;
  if (wanted > 0) memset(found, 0, 96);  // one result: an algorithm without scratch
  return *count = wanted > 0, 0;
}
