// The dialect of the kernels: the common subset of CUDA C++ and C11, so that the text that NVRTC compiles also runs on a
// processor, thread by thread, in tests.
//
// A kernel begins a line with KERNEL(name, (parameters)). Parameters are pointers, `unsigned`, `unsigned long long` and
// `float`. There is no shared memory, no barrier, no warp intrinsic and no atomic: threads are independent, a reduction is
// one kernel for its parts and one for their sum, and so every kernel gives the same bits in every run. A block has at most
// 256 threads. Multiplies and adds are fused only where a kernel has `fmaf`: compilers must not fuse others (--fmad=false,
// -ffp-contract=off), so that elements without a sum have the bits of the CPU twin.
//
// On a processor, the caller of a kernel sets BLOCK_X to THREADS before each call.

#ifdef __CUDACC__

#define KERNEL(name, parameters) extern "C" __global__ void __launch_bounds__(256) name parameters
#define FUNCTION static __device__ __forceinline__
#define UNROLL _Pragma("unroll")
#define ROLLED _Pragma("unroll 1")
#define BITS_OF(v) __float_as_uint(v)
#define FLOAT_OF(v) __uint_as_float(v)
#define NOT_A_NUMBER __int_as_float(0x7fffffff)
#define INFINITE __int_as_float(0x7f800000)
#define BLOCK_X blockIdx.x
#define BLOCK_Y blockIdx.y
#define BLOCK_Z blockIdx.z
#define THREAD threadIdx.x
#define THREADS blockDim.x

#else

#include <math.h>

#define KERNEL(name, parameters) static void name parameters
#define FUNCTION static inline
#define UNROLL
#define ROLLED
#define BITS_OF(v) ((union { float number; unsigned bits; }){.number = (v)}.bits)
#define FLOAT_OF(v) ((union { unsigned bits; float number; }){.bits = (v)}.number)
#define NOT_A_NUMBER NAN
#define INFINITE INFINITY

typedef struct __attribute__((aligned(16))) {
    float x, y, z, w;
} float4;

typedef struct __attribute__((aligned(8))) {
    unsigned short x, y, z, w;
} ushort4;

static _Thread_local unsigned BLOCK_X, BLOCK_Y, BLOCK_Z, THREAD, THREADS;

#endif

typedef unsigned long long u64;

// Number of this thread within the launch.
#define INDEX ((u64)BLOCK_X * THREADS + THREAD)

// a / b, in 32 bits if possible: a division of 64 takes several times as long.
FUNCTION u64 quotient(u64 a, unsigned b) { return (a >> 32) == 0 ? (unsigned)a / b : a / b; }

// Number of elements from `first` on, at most `most`.
FUNCTION unsigned there(u64 n, u64 first, unsigned most) {
    return first >= n ? 0 : n - first < most ? (unsigned)(n - first) : most;
}

// Four elements from `i` on, of which `count` exist; the rest is 0. `aligned` means that i is a multiple of 4.
FUNCTION void fetch(const float *x, u64 i, unsigned count, unsigned aligned, float v[4]) {
    if (aligned && count == 4) {
        float4 all = *(const float4 *)(x + i);
        v[0] = all.x;
        v[1] = all.y;
        v[2] = all.z;
        v[3] = all.w;
    } else {
        UNROLL
        for (unsigned l = 0; l < 4; l++) v[l] = l < count ? x[i + l] : 0.0f;
    }
}

// Writes the existing ones of four elements from `i` on.
FUNCTION void put(float *y, u64 i, unsigned count, unsigned aligned, const float v[4]) {
    if (aligned && count == 4) {
        float4 all;
        all.x = v[0];
        all.y = v[1];
        all.z = v[2];
        all.w = v[3];
        *(float4 *)(y + i) = all;
    } else {
        UNROLL
        for (unsigned l = 0; l < 4; l++)
            if (l < count) y[i + l] = v[l];
    }
}

// The same for i a multiple of 4.
FUNCTION void load(const float *x, u64 i, unsigned count, float v[4]) { fetch(x, i, count, 1, v); }

FUNCTION void store(float *y, u64 i, unsigned count, const float v[4]) { put(y, i, count, 1, v); }

// An activation or its gradient is stored as Map: f32, or bf16 (the upper half of an f32) if BF16 is defined. All else is
// float, and so is all arithmetic: `number` widens each Map that a kernel reads, and `stored` rounds each element that it
// writes once, to the nearest, ties to even, as on the CPU (`cpu/kernels/maps.rs`).
#ifdef BF16

typedef unsigned short Map;

FUNCTION float number(Map half) { return FLOAT_OF((unsigned)half << 16); }

FUNCTION Map stored(float v) {
    unsigned bits = BITS_OF(v);
    // A NaN whose upper half is that of an infinity needs an extra bit.
    return (Map)(v != v ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// The functions above, for a Map.
FUNCTION void fetch_map(const Map *x, u64 i, unsigned count, unsigned aligned, float v[4]) {
    ushort4 all;
    if (aligned && count == 4) {
        all = *(const ushort4 *)(x + i);
    } else {
        all.x = count > 0 ? x[i] : 0;
        all.y = count > 1 ? x[i + 1] : 0;
        all.z = count > 2 ? x[i + 2] : 0;
        all.w = count > 3 ? x[i + 3] : 0;
    }
    v[0] = number(all.x);
    v[1] = number(all.y);
    v[2] = number(all.z);
    v[3] = number(all.w);
}

FUNCTION void put_map(Map *y, u64 i, unsigned count, unsigned aligned, const float v[4]) {
    if (aligned && count == 4) {
        ushort4 all;
        all.x = stored(v[0]);
        all.y = stored(v[1]);
        all.z = stored(v[2]);
        all.w = stored(v[3]);
        *(ushort4 *)(y + i) = all;
    } else {
        UNROLL
        for (unsigned l = 0; l < 4; l++)
            if (l < count) y[i + l] = stored(v[l]);
    }
}

FUNCTION void load_map(const Map *x, u64 i, unsigned count, float v[4]) { fetch_map(x, i, count, 1, v); }

FUNCTION void store_map(Map *y, u64 i, unsigned count, const float v[4]) { put_map(y, i, count, 1, v); }

#else

typedef float Map;

FUNCTION float number(Map v) { return v; }

FUNCTION Map stored(float v) { return v; }

#define fetch_map fetch
#define put_map put
#define load_map load
#define store_map store

#endif
