// Replaces CUDA's header of this name (see `host_defines.h`), which refuses compilers that nvcc does not support: nvcc is not
// used here.

#pragma once
